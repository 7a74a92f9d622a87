"""Losses with one ratio per sequence.

Micro-batches have whole sequences, so every split gives the same loss. A trajectory with a rewritten history owns
several sequences; each has its own ratio, because each is one context of the policy.
"""

import torch
from torch import Tensor

from agentrl.algorithms.losses.clipped import Details, clipped_terms
from agentrl.algorithms.ratios import MAX_LOG_RATIO
from agentrl.algorithms.segments import sequence_mean
from agentrl.core.points import policy_loss


@policy_loss("gspo", by_sequence="usually")
def gspo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    mask: Tensor,
    cu_seqlens: Tensor,
    low: float,
    high: float,
) -> tuple[Tensor, Details]:
    """PPO's clip on the sequence's ratio, the geometric mean of its tokens' (GSPO, arXiv 2507.18071).

    All tokens of a sequence are clipped together, or none; the gradient goes to each token's log-prob (GSPO-token).
    Its clip ranges are small: 3e-4 and 4e-4 in the paper. More stable than vanilla for mixtures of experts. It is
    the mean over sequences of means over their tokens, unless `loss_agg_mode` is set.
    """
    mean = sequence_mean((logprobs - old_logprobs).detach(), mask, cu_seqlens).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = mean.exp() * (logprobs - logprobs.detach()).exp()
    unclipped, clipped, details = clipped_terms(ratio, advantages, low=low, high=high)
    return torch.maximum(unclipped, clipped), details


@policy_loss("geo_mean", by_sequence=True)
def geo_mean(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    mask: Tensor,
    cu_seqlens: Tensor,
    low: float,
    high: float,
) -> tuple[Tensor, Details]:
    """The geometric mean of token ratios that are clipped one by one (GMPO, arXiv 2507.20673).

    Log-ratios are clipped to [-low, high], pessimistically as in PPO. One outlier token changes the mean little, so the
    ranges can be wide: 0.4 in the paper.
    """
    gap = logprobs - old_logprobs
    sign = advantages.sign()
    bounded = gap.clamp(-low, high)
    kept = sign * torch.minimum(sign * gap, sign * bounded)
    ratio = sequence_mean(kept, mask, cu_seqlens).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    clipped = (kept != gap) & (sign != 0)
    return -advantages * ratio, {"ratio": ratio.detach(), "clipped": clipped.float()}
