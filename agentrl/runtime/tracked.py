"""Times the phases of a runtime, and stops a run between them.

Invariant: a stop requested while a step samples or computes log-probs ends the step before any state of a checkpoint
changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from agentrl.core.stopping import StopRequest
from agentrl.rollout.stream import AdmittedBatch, Pending
from agentrl.rollout.workers import OnDone
from agentrl.runtime.runtime import Runtime
from agentrl.tracking.run_tracker import Metrics, RunTracker
from agentrl.training import Batch
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory


class TrackedRuntime:
    """The methods of `Runtime` that a step calls."""

    def __init__(self, runtime: Runtime, tracker: RunTracker, stop: StopRequest) -> None:
        self.runtime, self.tracker, self.stop = runtime, tracker, stop
        tracker.view.watch(runtime.containers)
        tracker.started(runtime.start_times.metrics())

    def rollout(self, rows: Sequence[Row], step: int, on_done: OnDone, *, scored: bool = True) -> list[Trajectory]:
        """As `RolloutWorkers` says; they are compared with the template beside the step."""
        made = self.runtime.rollout(rows, step, on_done, scored=scored)
        self.tracker.beside(partial(self.runtime.compare, made))
        return made

    def compare(self, trajectories: Sequence[Trajectory]) -> None:
        """As `RolloutWorkers` says."""
        self.runtime.compare(trajectories)

    def begin(self, batch: AdmittedBatch) -> Pending:
        """As `RolloutWorkers` says; a wait for it raises Interrupted if a stop is requested."""
        return Stoppable(self.runtime.begin(batch), self.stop)

    def activity(self) -> Metrics:
        """As `RolloutWorkers` says."""
        return self.runtime.activity()

    def greedy(self, rows: Sequence[Row], step: int, on_done: OnDone) -> list[Trajectory]:
        """As `RolloutWorkers` says."""
        return self.runtime.greedy(rows, step, on_done)

    def validate(self, rows: Sequence[Row], step: int, on_done: OnDone) -> list[Trajectory]:
        """As `RolloutWorkers` says."""
        return self.runtime.validate(rows, step, on_done)

    def compute_logprobs(self, batch: Batch) -> Batch:
        """As `Runtime` says. Raises Interrupted if a stop was requested meanwhile."""
        with self.tracker.phase("logprobs"):
            batch = self.runtime.compute_logprobs(batch)
        self.stop.check()
        return batch

    def can_accumulate_early(self) -> bool:
        """As `Runtime` says."""
        return self.runtime.can_accumulate_early()

    def accumulate_early(self, part: Batch) -> None:
        """As `Runtime` says; its time is that of the update."""
        with self.tracker.phase("update"):
            self.runtime.accumulate_early(part)

    def update(self, batch: Batch) -> Metrics:
        """As `Runtime` says; an empty batch updates nothing."""
        if not batch.num_sequences:
            return {"rollout/nothing_to_learn": 1.0}
        early = {"perf/early_share": 0.0} if self.runtime.can_accumulate_early() else {}
        with self.tracker.phase("update", tokens=batch.num_tokens):
            return early | self.runtime.update(batch)

    def publish_weights(self, version: int) -> None:
        """As `Runtime` says; what `rollout` left beside the step has ended."""
        self.tracker.catch_up()
        with self.tracker.phase("sync"):
            self.runtime.publish_weights(version)


@dataclass(frozen=True)
class Stoppable:
    """Trajectories being made; a stop request ends the wait for them."""

    pending: Pending
    stop: StopRequest

    def result(self, poll: Callable[[], object] = lambda: None) -> list[Trajectory]:
        """As `Pending` says. Raises Interrupted."""

        def check() -> None:
            self.stop.check()
            poll()

        self.stop.check()
        return self.pending.result(check)

    def done(self) -> bool:
        """As `Pending` says."""
        return self.pending.done()
