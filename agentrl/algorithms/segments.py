"""Arithmetic over packed sequences: T tokens in a row, B sequences with bounds `cu_seqlens` [B+1]."""

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
    """The first token of each turn: bool [T]. A turn is consecutive model tokens of one sequence.

    Two turns always have a token with mask 0 between them.
    """
    owner = sequence_of(cu_seqlens)
    continues = torch.zeros_like(mask)
    continues[1:] = mask[:-1] & (owner[1:] == owner[:-1])
    return mask & ~continues


def latest(starts: Tensor) -> Tensor:
    """The index of the last marked token at or before each token, 0 without one: int64 [T]."""
    indices = torch.arange(starts.numel(), device=starts.device)
    return torch.where(starts, indices, 0).cummax(0).values


def dense(ids: Tensor) -> tuple[Tensor, int]:
    """Renumber arbitrary ids 0..n-1 in ascending order: (int64 like `ids`, n)."""
    unique, index = ids.unique(return_inverse=True)
    return index, unique.numel()
