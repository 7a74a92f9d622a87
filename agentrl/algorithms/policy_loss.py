"""Policy losses, token by token. What to divide by is `aggregate.token_weights`' business."""

import torch
from torch import Tensor

# exp() of more than this says nothing but overflow; the clip has long cut the gradient there.
MAX_LOG_RATIO = 20.0


def ppo_clip_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, low: float, high: float, c: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clipped surrogate, to be minimised (arXiv 1707.06347).

    The ratio is cut to [1 - low, 1 + high]; a `high` above `low` is clip-higher (arXiv 2503.14476). Where the
    advantage is negative the loss is bounded by `c` times its size (dual clip, arXiv 1912.09729).

    All tensors are f32 [T]; only `logprobs` carries a gradient. Gives (loss [T], diagnostics, each [T] and
    detached): `ratio`; `clipped`, 1 where the outer clip is active; `clipped_dual`, 1 where the dual clip is.
    """
    ratio = (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    free = -advantages * ratio
    cut = -advantages * ratio.clamp(1 - low, 1 + high)
    clipped = torch.maximum(free, cut)
    bound = -advantages * c
    bounded = (advantages < 0) & (clipped > bound)
    loss = torch.where(bounded, bound, clipped)
    diagnostics = {"ratio": ratio.detach(), "clipped": (cut > free).float(), "clipped_dual": bounded.float()}
    return loss, diagnostics
