"""Arithmetic over packed sequences: T tokens in a row, B sequences, `cu_seqlens` [B+1] holding their bounds."""

import torch
from torch import Tensor


def sequence_of(cu_seqlens: Tensor) -> Tensor:
    """The sequence each token belongs to: int64 [T]."""
    lengths = cu_seqlens.diff().long()
    return torch.repeat_interleave(torch.arange(lengths.numel(), device=lengths.device), lengths)


def sum_by(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Sums of `values` [N] over equal entries of `index` [N]: [size], in the dtype of `values`."""
    return torch.zeros(size, dtype=values.dtype, device=values.device).index_add_(0, index, values)


def dense(ids: Tensor) -> tuple[Tensor, int]:
    """Number arbitrary ids 0..n-1 in rising order: (int64 like `ids`, n)."""
    unique, index = ids.unique(return_inverse=True)
    return index, unique.numel()
