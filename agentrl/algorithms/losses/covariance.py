"""Losses that keep entropy high by treating the few tokens of high covariance differently (arXiv 2505.22617).

A token's covariance is (advantage - mean) * (log-prob - mean). Which tokens those are is chosen once for the whole
mini-batch, from the log-probs before the step: so the split into micro-batches does not change the loss.
"""

import torch
from torch import Tensor

from agentrl.algorithms.losses.clipped import Details, clipped_terms
from agentrl.algorithms.ratios import ratio_of
from agentrl.core.points import policy_loss


def covariances(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Each model token's part in the covariance of log-prob and advantage: f32 [T], -inf off the mask."""
    tokens = mask.sum().clamp(min=1)
    centred = [values - torch.where(mask, values, 0.0).sum() / tokens for values in (advantages, logprobs)]
    return torch.where(mask, centred[0] * centred[1], -torch.inf)


def choose_between(
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_cov_ratio: float,
    clip_cov_lb: float,
    clip_cov_ub: float,
    generator: torch.Generator,
) -> Tensor:
    """Clip-Cov's tokens, drawn at random with the CPU `generator`: bool [T]."""
    covariance = covariances(old_logprobs, advantages, mask)
    candidates = ((covariance > clip_cov_lb) & (covariance < clip_cov_ub)).nonzero().squeeze(-1)
    drawn = torch.randperm(candidates.numel(), generator=generator)[: _share(mask, clip_cov_ratio)]
    return _marked(candidates[drawn.to(candidates.device)], mask)


def choose_largest(old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *, kl_cov_ratio: float) -> Tensor:
    """KL-Cov's tokens: bool [T]."""
    covariance = covariances(old_logprobs, advantages, mask)
    return _marked(covariance.topk(min(_share(mask, kl_cov_ratio), int(mask.sum()))).indices, mask)


def _share(mask: Tensor, ratio: float) -> int:
    """That share of the model tokens, at least one."""
    return max(int(ratio * int(mask.sum())), 1)


def _marked(indices: Tensor, mask: Tensor) -> Tensor:
    return torch.zeros_like(mask).index_fill(0, indices, True)


@policy_loss("clip_cov", choose=choose_between)
def clip_cov(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, chosen: Tensor, low: float, high: float
) -> tuple[Tensor, Details]:
    """PPO's clip, and no gradient for a few tokens of high covariance (Clip-Cov, arXiv 2505.22617).

    `chosen` bool [T] names them. `clip_cov_ratio` of the tokens are drawn from those whose covariance lies between
    `clip_cov_lb` and `clip_cov_ub`.
    """
    unclipped, clipped, details = clipped_terms(ratio_of(logprobs, old_logprobs), advantages, low=low, high=high)
    details["clipped"] = torch.maximum(details["clipped"], chosen.float())
    return torch.where(chosen, 0.0, torch.maximum(unclipped, clipped)), details


@policy_loss("kl_cov", choose=choose_largest)
def kl_cov(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, chosen: Tensor, ppo_kl_coef: float
) -> tuple[Tensor, Details]:
    """The unclipped surrogate, and a KL penalty on a few tokens of high covariance (KL-Cov, arXiv 2505.22617).

    `chosen` bool [T] names them: the `kl_cov_ratio` of the tokens whose covariance is largest. The penalty is
    `ppo_kl_coef` times the distance of the log-prob from before the step.
    """
    ratio = ratio_of(logprobs, old_logprobs)
    penalty = ppo_kl_coef * (logprobs - old_logprobs).abs()
    return -advantages * ratio + torch.where(chosen, penalty, 0.0), {"ratio": ratio.detach()}
