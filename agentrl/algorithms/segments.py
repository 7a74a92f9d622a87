"""Arithmetic over packed sequences: T tokens in a row, B sequences with bounds `cu_seqlens` [B+1]."""

from collections.abc import Callable

import torch
from torch import Tensor

Total = Callable[[Tensor], Tensor]
"""The sum of a tensor over the parts of a batch; it may write to the tensor."""


def unchanged(tensor: Tensor) -> Tensor:
    """The total of a batch that has one part."""
    return tensor


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


def discounted_sums(values: Tensor, owner: Tensor, discount: float) -> Tensor:
    """Sum of each entry and the later ones of the same owner, discounted once an entry: like `values` [N].

    `owner` [N] has equal ones together. After pass k an entry has the sum of the 2^k entries from it on, so the passes
    grow with the logarithm of the longest owner.
    """
    sums, reach = values.clone(), 1
    longest = int(owner.unique_consecutive(return_counts=True)[1].max()) if owner.numel() else 0
    while reach < longest and discount:
        sums[:-reach] += torch.where(owner[:-reach] == owner[reach:], discount * sums[reach:], 0.0)
        discount, reach = discount**2, 2 * reach
    return sums


def numbers_within(owner: Tensor) -> Tensor:
    """The number of earlier entries with the same owner: int64 like `owner` [N]."""
    order = owner.argsort(stable=True)
    counts = owner[order].unique_consecutive(return_counts=True)[1]
    first = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    numbers = torch.empty_like(order)
    numbers[order] = torch.arange(owner.numel(), device=owner.device) - first
    return numbers


def dense(ids: Tensor) -> tuple[Tensor, int]:
    """Renumber arbitrary ids 0..n-1 in ascending order: (int64 like `ids`, n)."""
    unique, index = ids.unique(return_inverse=True)
    return index, unique.numel()
