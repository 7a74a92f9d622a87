"""Losses that weight each token smoothly, so that no token loses its whole gradient."""

import torch
from torch import Tensor

from agentrl.algorithms.losses.clipped import Details
from agentrl.algorithms.ratios import ratio_of
from agentrl.core.points import policy_loss


@policy_loss("cispo")
def cispo(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, low: float, high: float
) -> tuple[Tensor, Details]:
    """REINFORCE weighted by the clipped ratio, which carries no gradient (CISPO, arXiv 2506.13585).

    Rare tokens whose ratio leaves [1 - low, 1 + high] keep a gradient. The paper clips above only: a large `low`.
    """
    ratio = ratio_of(logprobs, old_logprobs).detach()
    weight = ratio.clamp(1 - low, 1 + high)
    return -weight * advantages * logprobs, {"ratio": ratio, "clipped": (weight != ratio).float()}


@policy_loss("gpg")
def gpg(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> tuple[Tensor, Details]:
    """The plain policy gradient, without ratio or clip (GPG, arXiv 2504.02546).

    For one optimizer step per training step; later ones would be off-policy without a correction.
    """
    return -advantages * logprobs, {}


@policy_loss("sapo", by_sequence=True)
def sapo(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, tau_pos: float, tau_neg: float
) -> tuple[Tensor, Details]:
    """A sigmoid gate on the ratio in place of the clip (SAPO, arXiv 2511.20347).

    The gate is 4 / tau * sigmoid(tau * (ratio - 1)): on-policy its slope is that of the ratio; away from 1 it
    decreases, faster with a larger tau. `tau_pos` is for positive advantages, `tau_neg` for the others.
    """
    ratio = ratio_of(logprobs, old_logprobs)
    tau = torch.where(advantages > 0, tau_pos, tau_neg)
    gate = torch.sigmoid(tau * (ratio - 1)) * 4 / tau
    return -gate * advantages, {"ratio": ratio.detach()}
