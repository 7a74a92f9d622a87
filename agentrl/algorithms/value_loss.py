"""The critic's loss per token; `aggregate.token_weights` averages it."""

import torch
from torch import Tensor


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
