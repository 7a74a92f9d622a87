"""The learners of all ranks as one. Each rank gets its share of a batch.

Invariants: no token passes through here: a rank takes those of its share from the store, and leaves there the columns
that it computes; they come here only where the advantages are computed from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.runtime.ray.worker_group import WorkerGroup
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.outline import BatchOutline, BatchPlan
from agentrl.training.batches.packing import pack_lines
from agentrl.training.batches.transfer import Share, with_computed
from agentrl.trajectory.store import Store
from agentrl.trajectory.trajectory import Trajectory


@dataclass
class RayLearner:
    """Sends shares to the ranks, and puts together what these compute; other calls go to all of them."""

    ranks: WorkerGroup
    store: Store
    each: int
    """Ranks that split the tokens of a share."""
    shares: bool = False
    """Whether a rank computes equal prompts once."""
    reads: frozenset[str] | None = None
    """Columns of tokens that advantages are computed from; None: lines are enough."""
    several: bool = False
    """Whether each side of a trajectory is of another policy."""
    held: list[list[int]] = field(default_factory=list)
    """Keys of the sequences of each share that ranks have."""
    computed: list[Any] = field(default_factory=list)
    """References of the columns that they computed."""
    accumulated: set[int] = field(default_factory=set)
    """Keys of the sequences whose gradients are accumulated."""

    def prepare(self, total_steps: int) -> None:
        """Create actor, reference and critic for a run of `total_steps` steps."""
        self.shares = self.ranks.call("call", "prepare", total_steps)

    def warm_up(self, should_stop: object) -> None:
        """Compile the passes of a step, all of them."""
        self.ranks.call("call", "warm_up")

    def pack(self, trajectories: Sequence[Trajectory], version: int | None) -> Batch:
        """A batch of all sound trajectories, without their tokens: of lines, or where `reads` says so of tokens."""
        batch = pack_lines(trajectories, version, self.store, sides=self.several)
        return batch if self.reads is None else batch.expanded()

    def compute_logprobs(self, batch: Batch) -> Batch:
        """`Learner.compute_logprobs` on all ranks; nothing is sent where it would compute nothing."""
        plan, self.held, self.computed = self._plan(batch), [], []
        if not plan.scores_first:
            return batch
        shares = (Share.of(batch, sequences, wanted=self.reads or ()) for sequences in plan.shares)
        answers = self.ranks.scatter("compute_logprobs", shares, self.each)[:: self.each]
        keys = batch.keys
        self.held = [[keys[i] for i in sequences] for sequences in plan.shares]
        self.computed = [answer for answer, sequences in zip(answers, plan.shares, strict=True) if sequences]
        return with_computed(batch, self.store.get(self.computed)) if self.reads else batch

    def accumulate_early(self, part: Batch) -> None:
        """`Learner.accumulate_early` on all ranks."""
        plan = self._plan(part)
        self.ranks.scatter("accumulate_early", (Share.of(part, sequences) for sequences in plan.shares), self.each)
        self.accumulated.update(part.keys)

    def update(self, batch: Batch) -> dict[str, float]:
        """`Learner.update` on all ranks."""
        plan, held, computed, keys = self._plan(batch), self.held, self.computed, batch.keys
        self.held, self.computed, self.accumulated = [], [], set()

        def share(number: int, sequences: list[int]) -> Share:
            same = bool(sequences and held) and held[number] == [keys[i] for i in sequences]
            return Share.of(batch, sequences, held=same, computed=() if same else computed)

        shares = (share(number, sequences) for number, sequences in enumerate(plan.shares))
        return self.ranks.scatter("update", shares, self.each)[0]

    def save(self, folder: Path, step: int, state: dict[str, Any], last: bool, model_only: bool) -> None:
        """Write the checkpoint of `step`; each rank writes its share."""
        others = {name: part for name, part in state.items() if name != "rows"}  # with trajectories: rank 0 writes them
        states = [state, *[others] * (len(self.ranks.actors) - 1)]
        self.ranks.each("call", [("save", folder.absolute(), step, own, last, model_only) for own in states])

    def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        """Restore a checkpoint: (its step, the run's state). Raises UserError."""
        return self.ranks.call("load_checkpoint", path.absolute())

    def __getattr__(self, name: str) -> Any:
        return partial(self.ranks.call, "call", name)

    def _plan(self, batch: Batch) -> BatchPlan:
        return self.ranks.call("call", "plan", BatchOutline.of(batch, self.shares, self.accumulated))
