"""Sums and means of padded tensors over a mask of the same shape, as functions written for verl take them."""

from typing import Any

import torch
from torch import Tensor

SMALL = 1e-8
"""Keeps an empty mask from dividing by 0."""


def masked_sum(values: Tensor, mask: Tensor, axis: Any = None) -> Tensor:
    """The sum over the mask, of all or along `axis`; values off the mask may be NaN."""
    return (torch.where(mask.bool(), values, 0.0) * mask).sum(dim=axis)


def masked_mean(values: Tensor, mask: Tensor, axis: Any = None) -> Tensor:
    """The mean over the mask; 0 where the mask is empty."""
    return masked_sum(values, mask, axis) / (mask.sum(dim=axis) + SMALL)


def masked_var(values: Tensor, mask: Tensor, unbiased: bool = True) -> Tensor:
    """The variance over the mask. Raises ValueError for the unbiased one of fewer than two values."""
    variance = masked_mean((values - masked_mean(values, mask)) ** 2, mask)
    if not unbiased:
        return variance
    count = mask.sum()
    if count <= 1:
        raise ValueError(f"the mask has {int(count)} entries; an unbiased variance needs two")
    return variance * count / (count - 1)


def masked_whiten(values: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
    """Zero mean and unit deviation over the mask; the mean stays with `shift_mean=False`."""
    mean = masked_mean(values, mask)
    whitened = (values - mean) * torch.rsqrt(masked_var(values, mask) + SMALL)
    return whitened if shift_mean else whitened + mean


def clip_by_value(x: Tensor, tensor_min: Tensor, tensor_max: Tensor) -> Tensor:
    """`x` between two tensors."""
    return torch.minimum(torch.maximum(x, tensor_min), tensor_max)


def logprobs_from_logits(logits: Tensor, labels: Tensor, inplace_backward: bool = True) -> Tensor:
    """Log-probs [...] of `labels` [...] under `logits` [..., V]."""
    return torch.log_softmax(logits.float(), -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
