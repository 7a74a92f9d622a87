"""Checks of users' functions, which stand next to the built-in ones.

What such a function returns is checked whenever it is called, and what it raises becomes a UserError of one line.
"""

from typing import Any

import torch
from torch import Tensor

from agentrl.core.errors import UserError


def checked_column(values: Any, like: Tensor, mask: Tensor, *, where: str, what: str) -> Tensor:
    """`values` as f32 like the column `like` [T], 0 off the mask. Raises UserError for another shape or NaN."""
    if not isinstance(values, Tensor) or values.shape != like.shape:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise UserError(f"{where}: its {what} are {got}; they must be a tensor of the shape {tuple(like.shape)}")
    values = torch.where(mask, values.float(), 0.0)
    if bad := int((~values.detach().isfinite()).sum()):
        raise UserError(f"{where}: its {what} are NaN or infinite at {bad} of {int(mask.sum())} model tokens")
    return values
