"""PPO's clipped losses per token: the surrogate of the policy, and the regression of the critic."""

import torch
from torch import Tensor

from agentrl.algorithms.ratios import ratio_of
from agentrl.core.points import policy_loss

Details = dict[str, Tensor]


@policy_loss("vanilla")
def ppo_clip_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, low: float, high: float, c: float
) -> tuple[Tensor, Details]:
    """PPO's clipped surrogate, with clip-higher and dual clip (arXiv 1707.06347, 2503.14476, 1912.09729).

    The ratio is clipped to [1 - low, 1 + high]; a `high` above `low` is clip-higher. Where the advantage is negative,
    `c` times its size bounds the loss (dual clip).
    """
    unclipped, clipped, details = clipped_terms(ratio_of(logprobs, old_logprobs), advantages, low=low, high=high)
    losses = torch.maximum(unclipped, clipped)
    bound = -advantages * c
    bounded = (advantages < 0) & (losses > bound)
    return torch.where(bounded, bound, losses), details | {"clipped_dual": bounded.float()}


def clipped_terms(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> tuple[Tensor, Tensor, Details]:
    """(loss, loss of the clipped ratio, diagnostics): f32 [T] each; PPO takes the larger loss."""
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    return unclipped, clipped, {"ratio": ratio.detach(), "clipped": (clipped > unclipped).float()}


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, cliprange: float
) -> tuple[Tensor, Tensor]:
    """Half the larger squared error of `values` and of `values` clipped to `cliprange` around the old ones.

    So a value gains nothing by moving further in one step (PPO's value clipping, arXiv 2005.12729). All tensors are
    f32 [T]; only `values` has a gradient. Returns (loss [T], 1 where the clip acts, f32 [T]).
    """
    clipped = old_values + (values - old_values).clamp(-cliprange, cliprange)
    free, bounded = (values - returns).square(), (clipped - returns).square()
    outside = (values - old_values).abs() > cliprange  # inside the range both errors differ by rounding only
    return 0.5 * torch.maximum(free, bounded), (outside & (bounded > free)).float()
