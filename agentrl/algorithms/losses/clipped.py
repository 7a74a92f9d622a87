"""PPO's clipped surrogate."""

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
    free, cut, details = clipped_terms(ratio_of(logprobs, old_logprobs), advantages, low=low, high=high)
    clipped = torch.maximum(free, cut)
    bound = -advantages * c
    bounded = (advantages < 0) & (clipped > bound)
    return torch.where(bounded, bound, clipped), details | {"clipped_dual": bounded.float()}


def clipped_terms(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> tuple[Tensor, Tensor, Details]:
    """(loss, loss of the clipped ratio, diagnostics): f32 [T] each; PPO takes the larger loss."""
    free = -advantages * ratio
    cut = -advantages * ratio.clamp(1 - low, 1 + high)
    return free, cut, {"ratio": ratio.detach(), "clipped": (cut > free).float()}
