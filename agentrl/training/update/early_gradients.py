"""Gradients of a batch's first groups, computed while its last ones are still sampled.

An update of one optimizer step adds up the gradients of its sequences, so finished ones need not wait for the others.

Invariants:
- an update with early gradients equals one without, up to rounding: they count only where its batch has each of those
  sequences with the same tokens and advantages; otherwise they are forgotten, and all is computed again;
- a token's weight in the loss is that of the whole mini-batch: with each part, what was added up before is scaled;
- all ranks agree: a sequence may be in another rank's share later, for gradients are sums over ranks.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentrl.algorithms import token_weights
from agentrl.algorithms.segments import sequence_of, sum_by
from agentrl.training.batches.batch import Batch, bounds_of
from agentrl.training.parallel.ranks import ALONE, Ranks
from agentrl.training.update.report import PolicyReport

SAME = 1e-4
"""Sums of advantages that differ by less are the same, computed on another device."""

Facts = tuple[float, ...]
"""Of a sequence: its weight in the loss, the numbers that identify its tokens, and sums over its advantages."""


@dataclass
class EarlyGradients:
    """What is known of the sequences whose gradients are added up; of this rank's share of them."""

    report: PolicyReport
    """Of their passes."""
    ranks: Ranks = ALONE
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
        `token_weights`. Returns the factor of the gradients so far. Collective."""
        self.parts.append(part)
        weights = self._weights(mode, norm)
        before, self.weights = self.weights.to(weights.device), weights
        part.weights = self.weights[before.numel() :]
        weighed = before.nonzero()[:1, 0]
        return self._agreed((self.weights[weighed] / before[weighed]).tolist())

    def places_in(self, batch: Batch) -> list[int] | None:
        """Where a batch has the sequences of all parts, in their order; None where it lacks one. In one process."""
        places = {key: i for i, key in enumerate(_keys(batch))}
        found = [places.get(key) for part in self.parts for key in _keys(part)]
        rows = [i for i in found if i is not None]
        return rows if len(rows) == len(found) else None

    def ref_logprobs(self) -> Tensor:
        """The column of all parts."""
        return torch.cat([part.ref_logprobs for part in self.parts if part.ref_logprobs is not None])

    def found_in(self, mini: Batch) -> tuple[set[int], float] | str:
        """(the sequences of a mini-batch with weights whose gradients are there, the factor of these), or the reason
        why they do not count. Collective."""
        begun = self._begun()
        mine = {i: (facts, begun[key]) for i, (key, facts) in enumerate(_facts(mini)) if key in begun}
        there = self.ranks.sum(len(mine)) == len(begun)
        others = sum(not _same(now, then) for now, then in mine.values())
        if not there:
            return "the step does not train on all groups that were finished"
        if self.ranks.sum(others):
            return "tokens or advantages of a group depended on groups that were not finished"
        return set(mine), self._agreed([now[0] / then[0] for now, then in mine.values() if then[0]])

    def _begun(self) -> dict[int, Facts]:
        """By key, all sequences of all ranks."""
        for part, weights in zip(self.parts, self.weights.split([p.num_tokens for p in self.parts]), strict=True):
            part.weights = weights
        own = dict(pair for part in self.parts for pair in _facts(part))
        return {key: facts for share in self.ranks.gather(own) for key, facts in share.items()}

    def _weights(self, mode: str, norm: float) -> Tensor:
        """Weights of the tokens in one loss of all parts, f32."""
        owners, first = [], 0
        for part in self.parts:
            owners.append(part.trajectory + first)
            first += self.ranks.most(max(part.trajectory.tolist(), default=-1) + 1)
        mask = torch.cat([part.mask for part in self.parts])
        bounds = bounds_of([length for part in self.parts for length in part.lengths]).to(mask.device)
        owner, total = torch.cat(owners), self.ranks.total
        return token_weights(mask, bounds, mode, trajectory=owner, trajectories=first, norm=norm, total=total)

    def _agreed(self, factors: list[float]) -> float:
        """The factor of all weights, of which a rank without tokens knows none."""
        return next((factor for own in self.ranks.gather(factors[:1]) for factor in own), 1.0)


def _keys(batch: Batch) -> list[int]:
    assert batch.key is not None
    keys: list[int] = batch.key.tolist()
    return keys


def _facts(batch: Batch) -> list[tuple[int, Facts]]:
    """(key, facts) of each sequence."""
    assert batch.advantages is not None
    assert batch.weights is not None
    owner = sequence_of(batch.cu_seqlens)
    ids, advantages = batch.ids.double(), batch.advantages.double()
    columns = batch.weights.double(), torch.ones_like(ids), batch.mask.double(), ids, ids * batch.positions
    sums = [sum_by(column, owner, batch.num_sequences) for column in (*columns, advantages, advantages**2)]
    return list(zip(_keys(batch), map(tuple, torch.stack(sums, dim=1).tolist()), strict=True))


def _same(now: Facts, then: Facts) -> bool:
    alike = (abs(a - b) <= SAME * (1 + abs(b)) for a, b in zip(now[5:], then[5:], strict=True))
    return now[1:5] == then[1:5] and all(alike)
