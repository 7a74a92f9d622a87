"""The critic's loss, token by token. What to divide by is `aggregate.token_weights`' business."""

import torch
from torch import Tensor


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, cliprange: float
) -> tuple[Tensor, Tensor]:
    """Half the squared error of `values`, and no less than that of values held within `cliprange` of the old ones.

    So a value gains nothing by moving further than that in one step (PPO's value clipping; arXiv 2005.12729 names it).
    All tensors are f32 [T]; only `values` carries a gradient. Gives (loss [T], where the clip acts, f32 [T]).
    """
    held = old_values + (values - old_values).clamp(-cliprange, cliprange)
    free, bounded = (values - returns).square(), (held - returns).square()
    outside = (values - old_values).abs() > cliprange  # within, the two errors differ by rounding alone
    return 0.5 * torch.maximum(free, bounded), (outside & (bounded > free)).float()
