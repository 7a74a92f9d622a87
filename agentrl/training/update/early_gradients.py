"""Gradients of a batch's first groups, computed while its last ones are still sampled.

An update of one optimizer step adds up the gradients of its sequences, so finished ones need not wait for the others.

Invariants:
- an update with early gradients equals one without, up to rounding: they count only where its batch has each of those
  sequences with the same tokens and advantages; otherwise they are forgotten, and all is computed again;
- a token's weight in the loss is that of the whole mini-batch: with each part, what was added up before is scaled;
- all ranks agree: a sequence may be in another rank's share later, for gradients are sums over ranks.
"""

import logging
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentrl.algorithms.aggregate import token_weights
from agentrl.algorithms.segments import sequence_of, sum_by
from agentrl.training.batches.batch import Batch, bounds_of
from agentrl.training.parallel.ranks import ALONE, Ranks
from agentrl.training.update.report import PolicyReport
from agentrl.training.update.trainable import Split, Trainable

ADVANTAGE_TOLERANCE = 1e-4
"""Sums of advantages that differ by less are the same, computed on another device."""
MAX_PAUSE = 64
"""Most updates in a row that accumulate nothing early, after many whose early gradients were of no use."""

Facts = tuple[float, ...]
"""Facts about a sequence: its weight in the loss, the numbers that identify its tokens, sums over its advantages."""

log = logging.getLogger(__name__)


@dataclass
class EarlyGradients:
    """This rank's sequences whose gradients are accumulated."""

    report: PolicyReport
    """The metrics of their passes."""
    ranks: Ranks = ALONE
    flops: float = 0.0
    parts: list[Batch] = field(default_factory=list)
    weights: Tensor = field(default_factory=lambda: torch.empty(0))
    """Weights of their tokens in the loss of all parts together, f32."""

    def add(self, part: Batch, mode: str, norm: float) -> float:
        """Add a part of whole trajectories, and set its weights in the loss of all parts. `mode`, `norm`: as in
        `token_weights`. Returns the factor of the gradients so far. Collective."""
        self.parts.append(part)
        weights = self._weights(mode, norm)
        before, self.weights = self.weights.to(weights.device), weights
        part.weights = self.weights[before.numel() :]
        weighed = before.nonzero()[:1, 0]
        return self._agreed((self.weights[weighed] / before[weighed]).tolist())

    def indices_in(self, batch: Batch) -> list[int] | None:
        """The indices of all sequences in a batch, in their order; None where it lacks one. In one process."""
        indices = {key: i for i, key in enumerate(batch.keys)}
        found = [indices[key] for part in self.parts for key in part.keys if key in indices]
        return found if len(found) == sum(part.num_sequences for part in self.parts) else None

    def ref_logprobs(self) -> Tensor:
        """The reference's log-probs of all parts."""
        return torch.cat([part.ref_logprobs for part in self.parts if part.ref_logprobs is not None])

    def found_in(self, mini: Batch) -> tuple[set[int], float] | str:
        """(the sequences of a mini-batch with weights whose gradients are there, the factor of these), or the reason
        why they do not count. Collective."""
        early = self._facts_of_all()
        mine = {i: (facts, early[key]) for i, (key, facts) in enumerate(_facts(mini)) if key in early}
        there = self.ranks.sum(len(mine)) == len(early)
        others = sum(not _same(now, then) for now, then in mine.values())
        if not there:
            return "the step does not train on all groups that were finished"
        if self.ranks.sum(others):
            return "tokens or advantages of a group depended on groups that were not finished"
        return set(mine), self._agreed([now[0] / then[0] for now, then in mine.values() if then[0]])

    def _facts_of_all(self) -> dict[int, Facts]:
        """The facts about the sequences of all ranks, by key."""
        for part, weights in zip(self.parts, self.weights.split([p.num_tokens for p in self.parts]), strict=True):
            part.weights = weights
        own = dict(pair for part in self.parts for pair in _facts(part))
        return {key: facts for share in self.ranks.gather(own) for key, facts in share.items()}

    def _weights(self, mode: str, norm: float) -> Tensor:
        """Weights of the tokens in one loss of all parts, f32."""
        owners, first = [], 0
        for part in self.parts:
            owners.append(part.trajectory + first)
            first += self.ranks.max_over_ranks(max(part.trajectory.tolist(), default=-1) + 1)
        mask = torch.cat([part.mask for part in self.parts])
        bounds = bounds_of([length for part in self.parts for length in part.lengths]).to(mask.device)
        owner, total = torch.cat(owners), self.ranks.sum_over_ranks
        return token_weights(mask, bounds, mode, trajectory=owner, trajectories=first, norm=norm, total=total)

    def _agreed(self, factors: list[float]) -> float:
        """The factor of all weights; a rank without tokens knows none."""
        return next((factor for own in self.ranks.gather(factors[:1]) for factor in own), 1.0)


class EarlyAccumulation:
    """Accumulates gradients of finished groups before their update, and gives them to that update."""

    def __init__(self, trainable: Trainable, mode: str, norm: float) -> None:
        """`mode`, `norm`: aggregation of the loss, as in `token_weights`."""
        self.trainable, self.mode, self.norm = trainable, mode, norm
        self.pending: EarlyGradients | None = None
        """Gradients for the next update."""
        self.used: EarlyGradients | None = None
        """Gradients that the last update used."""
        self.refused = False
        """Whether the last update trained on other data than was accumulated."""
        self._refusals = self.pause = 0
        """Updates that accumulate none, because early gradients were of no use lately."""
        self._warned = False

    def accumulate(self, part: Batch) -> float:
        """Add the gradients of whole groups that the next update is expected to train on; returns the FLOPs."""
        trainable, early, self.pending = self.trainable, self.pending, None
        part = part.to(trainable.device)
        early = early or EarlyGradients(PolicyReport(part, trainable.optimizer), trainable.micro_batching.ranks)
        flops = trainable.flops(part)
        factor = early.add(part, self.mode, self.norm)
        trainable.optimizer.scale_gradients(factor)
        early.report.rescale(factor)
        with trainable.training():
            if not trainable.run_passes(part, *trainable.split_by_gradient(part), early.report):
                return 0.0
        early.flops += flops
        self.pending = early
        return flops

    def next_update(self) -> None:
        """Count an update, which shortens a pause."""
        self.pause = max(self.pause - 1, 0)

    def remaining_sequences(self, mini: Batch, whole: Split, report: PolicyReport) -> Split:
        """Sequences that still need a pass. Adds the metrics of the others to `report`. Collective."""
        early, self.pending, self.used, self.refused = self.pending, None, None, False
        found = "" if early is None else early.found_in(mini)
        if isinstance(found, str) or early is None:
            if found:
                self._refuse(str(found))
            self.trainable.clear_gradients()
            return whole
        self.used, self._refusals = early, 0
        rows, factor = found
        self.trainable.optimizer.scale_gradients(factor)
        report.absorb(early.report, factor)
        trained, others = ([i for i in part if i not in rows] for part in whole)
        return trained, others

    def _refuse(self, reason: str) -> None:
        """Accumulate nothing early for some updates, for twice as many after each refusal in a row."""
        if self.trainable.micro_batching.ranks.first and not self._warned:
            log.warning(
                "an update that was begun early is computed again: %s (perf/early_refused counts further)", reason
            )
        self.refused = self._warned = True
        self._refusals += 1
        self.pause = min(2 ** (self._refusals - 1), MAX_PAUSE)


def _facts(batch: Batch) -> list[tuple[int, Facts]]:
    """(key, facts) of each sequence."""
    assert batch.advantages is not None
    assert batch.weights is not None
    owner = sequence_of(batch.cu_seqlens)
    ids, advantages = batch.ids.double(), batch.advantages.double()
    columns = batch.weights.double(), torch.ones_like(ids), batch.mask.double(), ids, ids * batch.positions
    sums = [sum_by(column, owner, batch.num_sequences) for column in (*columns, advantages, advantages**2)]
    return list(zip(batch.keys, map(tuple, torch.stack(sums, dim=1).tolist()), strict=True))


def _same(now: Facts, then: Facts) -> bool:
    alike = (abs(a - b) <= ADVANTAGE_TOLERANCE * (1 + abs(b)) for a, b in zip(now[5:], then[5:], strict=True))
    return now[1:5] == then[1:5] and all(alike)
