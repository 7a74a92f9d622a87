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


def sequence_mean(values: Tensor, mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """On each token, the mean of `values` [T] over the mask of its sequence; 0 in sequences without any: [T]."""
    owner, n = sequence_of(cu_seqlens), cu_seqlens.numel() - 1
    totals = sum_by(torch.where(mask, values, 0.0), owner, n)
    return (totals / sum_by(mask.to(values.dtype), owner, n).clamp(min=1))[owner]


def turn_starts(mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Where a turn begins, a run of model tokens within one sequence: bool [T].

    Between two turns there is always a token that the model did not make.
    """
    owner = sequence_of(cu_seqlens)
    goes_on = torch.zeros_like(mask)
    goes_on[1:] = mask[:-1] & (owner[1:] == owner[:-1])
    return mask & ~goes_on


def latest(starts: Tensor) -> Tensor:
    """The index of the last marked token up to each one, 0 where none is: int64 [T]."""
    places = torch.arange(starts.numel(), device=starts.device)
    return torch.where(starts, places, 0).cummax(0).values


def dense(ids: Tensor) -> tuple[Tensor, int]:
    """Number arbitrary ids 0..n-1 in rising order: (int64 like `ids`, n)."""
    unique, index = ids.unique(return_inverse=True)
    return index, unique.numel()
