"""verl's padded rows out of packed columns, and back.

A row is what verl calls a response: a sequence from its first model token to its end, or all of those of a
trajectory one after another. Rows are padded on the right with 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.algorithms.segments import dense, sequence_of


@dataclass(frozen=True)
class Rows:
    """N rows of at most R tokens out of T."""

    there: Tensor
    """bool [N, R]; False at padding."""
    tokens: Tensor
    """int64; the token in each place that is there, row by row."""
    length: int
    """T."""

    def pad(self, column: Tensor) -> Tensor:
        """[N, R] of a column [T]; gradients pass."""
        rows = torch.zeros(self.there.shape, dtype=column.dtype, device=column.device)
        return rows.masked_scatter(self.there, column[self.tokens])

    def unpad(self, rows: Tensor) -> Tensor:
        """[T] of [N, R], 0 at tokens that are in no row."""
        column = torch.zeros(self.length, dtype=rows.dtype, device=rows.device)
        return column.index_put((self.tokens,), rows[self.there])


def rows_of(mask: Tensor, cu_seqlens: Tensor, trajectory: Tensor | None = None) -> Rows:
    """A row for each of the B sequences; with `trajectory` int64 [B] one for each of its values, in rising order.

    `mask` bool [T] marks model tokens, `cu_seqlens` int32 [B+1] bounds sequences.
    """
    sequence = sequence_of(cu_seqlens)
    begun = mask.long().cumsum(0)
    before = torch.cat([begun.new_zeros(1), begun])[cu_seqlens[:-1].long()]
    tokens = (begun > before[sequence]).nonzero()[:, 0]
    owner, rows = (sequence, cu_seqlens.numel() - 1) if trajectory is None else _owned(sequence, trajectory)
    tokens = tokens[owner[tokens].argsort(stable=True)]
    lengths = torch.bincount(owner[tokens], minlength=rows)
    width = int(lengths.max()) if rows else 0
    there = torch.arange(width, device=mask.device) < lengths[:, None]
    return Rows(there, tokens, mask.numel())


def _owned(sequence: Tensor, trajectory: Tensor) -> tuple[Tensor, int]:
    index, rows = dense(trajectory)
    return index[sequence], rows
