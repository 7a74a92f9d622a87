"""Gradients of a batch's first groups, computed while its last ones are still sampled.

An update of one optimizer step adds up the gradients of its sequences, so finished ones need not wait for the others.

Invariants:
- an update with early gradients equals one without, up to rounding: they count only where its batch has each of those
  sequences with the same tokens and advantages; otherwise they are forgotten, and all is computed again;
- a token's weight in the loss is that of the whole mini-batch: parts are added up by weights relative to each other,
  and the update scales their sum;
- all ranks agree: a sequence may be in another rank's share later, for gradients are sums over ranks.
"""

import logging
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentrl.algorithms.segments import sequence_of, sum_by
from agentrl.training.batches.batch import Batch
from agentrl.training.parallel.ranks import ALONE, Ranks
from agentrl.training.update.report import PolicyReport
from agentrl.training.update.trainable import Split, Trainable

ADVANTAGE_TOLERANCE = 1e-4
"""Sums of advantages that differ by less are the same, computed on another device."""

Facts = tuple[float, ...]
"""Facts about a sequence: its weight in the loss, the numbers that identify its tokens, sums over its advantages."""

log = logging.getLogger(__name__)


@dataclass
class EarlyGradients:
    """This rank's sequences whose gradients are accumulated."""

    report: PolicyReport
    """The metrics of their passes."""
    ranks: Ranks = ALONE
    parts: list[Batch] = field(default_factory=list)
    """Whole trajectories, with relative weights."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all parts."""
        return sum(part.num_tokens for part in self.parts)

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
        own = dict(pair for part in self.parts for pair in _facts(part))
        early = {key: facts for share in self.ranks.gather(own) for key, facts in share.items()}
        mine = {i: (facts, early[key]) for i, (key, facts) in enumerate(_facts(mini)) if key in early}
        there = self.ranks.sum(len(mine)) == len(early)
        others = sum(not _same(now, then) for now, then in mine.values())
        if not there:
            return "the step does not train on all groups that were finished"
        if self.ranks.sum(others):
            return "tokens or advantages of a group depended on groups that were not finished"
        factors = [now[0] / then[0] for now, then in mine.values() if then[0]]
        # That of all sequences; a rank without trained tokens knows none.
        return set(mine), next((factor for own in self.ranks.gather(factors[:1]) for factor in own), 1.0)


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
        self._warned = False

    def accumulate(self, part: Batch) -> None:
        """Add the gradients of whole groups that the next update is expected to train on."""
        trainable, early, self.pending = self.trainable, self.pending, None
        part = part.to(trainable.device)
        early = early or EarlyGradients(PolicyReport(part, trainable.optimizer), trainable.micro_batching.ranks)
        part.weights = trainable.token_weights(part, self.mode, self.norm, relative=True)
        early.parts.append(part)
        with trainable.training():
            if trainable.run_passes(part, *trainable.split_by_gradient(part), early.report):
                self.pending = early

    def remaining_sequences(self, mini: Batch, whole: Split, report: PolicyReport) -> Split:
        """Sequences that still need a pass. Adds the metrics of the others to `report`. Collective."""
        early, self.pending, self.used = self.pending, None, None
        found = "" if early is None else early.found_in(mini)
        self.refused = isinstance(found, str) and found != ""
        if isinstance(found, str) or early is None:
            self._warn_once(str(found))
            self.trainable.clear_gradients()
            return whole
        self.used = early
        rows, factor = found
        self.trainable.optimizer.scale_gradients(factor)
        report.absorb(early.report, factor)
        trained, others = ([i for i in part if i not in rows] for part in whole)
        return trained, others

    def _warn_once(self, reason: str) -> None:
        if self.refused and not self._warned and self.trainable.micro_batching.ranks.first:
            self._warned = True
            log.warning(
                "an update that was begun early is computed again: %s (perf/early_refused counts further)", reason
            )


def _facts(batch: Batch) -> list[tuple[int, Facts]]:
    """(key, facts) of each sequence."""
    owner = sequence_of(batch.cu_seqlens)
    ids, advantages = batch.ids.double(), batch.column("advantages").double()
    columns = batch.column("weights").double(), torch.ones_like(ids), batch.mask.double(), ids, ids * batch.positions
    sums = [sum_by(column, owner, batch.num_sequences) for column in (*columns, advantages, advantages**2)]
    return list(zip(batch.keys, map(tuple, torch.stack(sums, dim=1).tolist()), strict=True))


def _same(now: Facts, then: Facts) -> bool:
    alike = (abs(a - b) <= ADVANTAGE_TOLERANCE * (1 + abs(b)) for a, b in zip(now[5:], then[5:], strict=True))
    return now[1:5] == then[1:5] and all(alike)
