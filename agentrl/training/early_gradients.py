"""Gradients of a batch's first groups, computed while its last ones are still sampled.

An update of one optimizer step adds up the gradients of its sequences, so finished ones need not wait for the others.

Invariants:
- an update with early gradients equals one without, up to rounding: they count only where its batch has each of those
  sequences with the same tokens and advantages; otherwise they are forgotten, and all is computed again;
- a token's weight in the loss is that of the whole mini-batch: with each part, what was added up before is scaled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentrl.algorithms import token_weights
from agentrl.training.batch import Batch, bounds_of
from agentrl.training.report import PolicyReport

SAME = 1e-4
"""Advantages that differ by less are the same, computed on another device."""


@dataclass
class EarlyGradients:
    """What is known of the sequences whose gradients are added up."""

    report: PolicyReport
    """Of their passes."""
    flops: float = 0.0
    parts: list[Batch] = field(default_factory=list)
    weights: Tensor = field(default_factory=lambda: torch.empty(0))
    """Of their tokens in the loss of all parts together, f32."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all parts."""
        return self.weights.numel()

    def add(self, part: Batch, mode: str, norm: float) -> float:
        """Add a part of whole trajectories, and set its weights in the loss of all parts. `mode`, `norm`: as in
        `token_weights`. Returns the factor of the gradients so far."""
        self.parts.append(part)
        before, self.weights = self.weights, _weights(self.parts, mode, norm)
        part.weights = self.weights[before.numel() :]
        return _factor(before, self.weights[: before.numel()])

    def places_in(self, batch: Batch) -> list[int] | None:
        """Where a batch has the sequences of all parts, in their order; None where it lacks one."""
        places = {key: i for i, key in enumerate(_keys(batch))}
        found = [places.pop(key, None) for part in self.parts for key in _keys(part)]
        rows = [i for i in found if i is not None]
        return rows if len(rows) == len(found) else None

    def ref_logprobs(self) -> Tensor:
        """The column of all parts."""
        return torch.cat([part.ref_logprobs for part in self.parts if part.ref_logprobs is not None])

    def found_in(self, mini: Batch) -> tuple[set[int], float] | None:
        """(the sequences of a mini-batch with weights whose gradients are there, the factor of these), or None where a
        sequence is not there, or has other advantages."""
        rows = self.places_in(mini)
        if rows is None:
            return None
        tokens = mini.tokens_of(rows)
        assert mini.advantages is not None
        assert mini.weights is not None
        advantages = torch.cat([part.advantages for part in self.parts if part.advantages is not None])
        if not torch.allclose(mini.advantages[tokens], advantages, rtol=SAME, atol=SAME):
            return None
        return set(rows), _factor(self.weights, mini.weights[tokens])


def _weights(parts: Sequence[Batch], mode: str, norm: float) -> Tensor:
    """Weights of the tokens in one loss of all parts, f32."""
    owners, first = [], 0
    for part in parts:
        owners.append(part.trajectory + first)
        first += int(part.trajectory.max()) + 1
    mask = torch.cat([part.mask for part in parts])
    bounds = bounds_of([length for part in parts for length in part.lengths]).to(mask.device)
    return token_weights(mask, bounds, mode, trajectory=torch.cat(owners), norm=norm)


def _factor(old: Tensor, new: Tensor) -> float:
    """By what all weights were multiplied: it is the same for each."""
    weighed = old.nonzero()
    return float(new[weighed[0]] / old[weighed[0]]) if weighed.numel() else 1.0


def _keys(batch: Batch) -> list[bytes]:
    """Each sequence by its tokens and how they were drawn."""
    columns = [c.cpu().split(batch.lengths) for c in (batch.ids, batch.mask, batch.rollout_logprobs)]
    return [b"".join(column.numpy().tobytes() for column in sequence) for sequence in zip(*columns, strict=True)]
