"""The learners of all ranks as one. Each rank gets its share of a batch.

Invariants: a rank gets no token of another share; a column that a rank has is not sent again; an object of Ray's store
holds one share, so a machine receives only the shares of its ranks.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentrl.runtime.ray.worker_group import WorkerGroup
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.outline import BatchOutline, BatchPlan
from agentrl.training.batches.transfer import Columns, changed_columns, share_columns, with_columns


@dataclass(frozen=True)
class Held:
    """The shares that the ranks have."""

    batch: Batch
    shares: list[list[int]]

    def columns(self, batch: Batch, number: int, sequences: list[int]) -> Columns:
        """Columns of the share of `sequences` that its ranks lack; the batch may have other columns now."""
        names = changed_columns(batch, self.batch)
        same = "ids" not in names and sequences and sequences == self.shares[number]
        return share_columns(batch, sequences, names if same else None)


@dataclass
class RayLearner:
    """Sends shares to the ranks, and puts together what these compute; other calls go to all of them."""

    ranks: WorkerGroup
    each: int
    """Ranks that split the tokens of a share."""
    shares: bool = False
    """Whether a rank computes equal prompts once."""
    held: Held | None = None
    accumulated: set[int] = field(default_factory=set)
    """Keys of the sequences whose gradients are accumulated."""

    def prepare(self, total_steps: int) -> None:
        """Create actor, reference and critic for a run of `total_steps` steps."""
        self.ranks.call("call", "prepare", total_steps)
        self.shares = self.ranks.call("call", "shares_prompts")

    def warm_up(self, should_stop: object) -> None:
        """Compile the passes of a step, all of them."""
        self.ranks.call("call", "warm_up")

    def compute_logprobs(self, batch: Batch) -> Batch:
        """`Learner.compute_logprobs` on all ranks; nothing is sent where it would compute nothing."""
        plan, self.held = self._plan(batch), None
        if not plan.scores_first:
            return batch
        shares = (share_columns(batch, sequences) for sequences in plan.shares)
        computed = self.ranks.scatter("compute_logprobs", shares, self.each)
        batch = with_columns(batch, plan.shares, computed[:: self.each])
        self.held = Held(replace(batch), plan.shares)
        return batch

    def can_accumulate_early(self) -> bool:
        """Whether `accumulate_early` is of use."""
        early: bool = self.ranks.call("call", "can_accumulate_early")
        return early

    def accumulate_early(self, part: Batch) -> None:
        """`Learner.accumulate_early` on all ranks."""
        plan = self._plan(part)
        self.ranks.scatter("accumulate_early", (share_columns(part, sequences) for sequences in plan.shares), self.each)
        if part.key is not None:
            self.accumulated.update(part.key.tolist())

    def update(self, batch: Batch) -> dict[str, float]:
        """`Learner.update` on all ranks, by the advantages in new shares."""
        plan, held = self._plan(batch), self.held
        self.held, self.accumulated = None, set()
        shares = (
            share_columns(batch, sequences) if held is None else held.columns(batch, number, sequences)
            for number, sequences in enumerate(plan.shares)
        )
        metrics: dict[str, float] = self.ranks.scatter("update", shares, self.each)[0]
        return metrics

    def offload_parameters(self) -> None:
        """Move parameters to CPU memory, where the settings ask for it."""
        self.ranks.call("call", "offload_parameters")

    def save(self, folder: Path, step: int, state: dict[str, Any], last: bool, model_only: bool) -> None:
        """Write the checkpoint of `step`; each rank writes its share."""
        self.ranks.call("call", "save", folder.absolute(), step, state, last, model_only)

    def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        """Restore a checkpoint: (its step, the run's state). Raises UserError."""
        loaded: tuple[int, dict[str, Any]] = self.ranks.call("call", "load", path.absolute())
        return loaded

    def _plan(self, batch: Batch) -> BatchPlan:
        plan: BatchPlan = self.ranks.call("call", "plan", BatchOutline.of(batch, self.shares, self.accumulated))
        return plan
