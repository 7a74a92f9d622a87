"""Forward passes over a batch: how it is cut into them, and figures for all of its tokens."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.training.batch import Batch
from agentrl.training.splitting import micro_batches

Score = Callable[[Batch], tuple[Tensor, ...]]
"""From a batch to columns f32 [T]."""


@dataclass(frozen=True)
class Cut:
    """The size of a forward pass; None: no limit."""

    max_tokens: int | None = None
    max_sequences: int | None = None

    def passes(self, batch: Batch, sequences: list[int] | None = None) -> list[list[int]]:
        """The given sequences of a batch (None: all) by forward pass, each a list of the batch's sequence indices."""
        sequences = list(range(batch.num_sequences)) if sequences is None else sequences
        lengths = batch.lengths
        cut = micro_batches(
            [lengths[i] for i in sequences], max_tokens=self.max_tokens, max_sequences=self.max_sequences
        )
        return [[sequences[i] for i in rows] for rows in cut]


@torch.no_grad()
def score_batch(score: Score, batch: Batch, cut: Cut, *, columns: int) -> Tensor:
    """What `score` says of every token, pass by pass: f32 [columns, T]."""
    table = torch.zeros(columns, batch.num_tokens, dtype=torch.float32, device=batch.ids.device)
    for rows in cut.passes(batch):
        table[:, batch.tokens_of(rows)] = torch.stack(score(batch.select(rows)))
    return table
