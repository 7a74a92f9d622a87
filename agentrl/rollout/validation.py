"""Validation: the held-out rows, sampled with the current weights."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.core.stopping import Interrupted
from agentrl.rollout.workers import RolloutWorkers
from agentrl.tracking import validation_metrics
from agentrl.tracking.run_tracker import Metrics, RunTracker
from agentrl.trajectory.row import Row


@dataclass(frozen=True)
class Validation:
    """Samples, records and measures `batches` of rows."""

    workers: RolloutWorkers
    tracker: RunTracker
    batches: Sequence[Sequence[Row]]
    n: int
    """Trajectories a row."""

    def __call__(self, step: int) -> Metrics:
        """`val/` metrics of the current weights; none without rows, or where a stop is requested meanwhile."""
        total = sum(map(len, self.batches)) * self.n
        try:
            with self.tracker.rollout_phase("validate", total) as on_done:
                sampled = [self.workers.validate(rows, step, on_done) for rows in self.batches]
        except Interrupted:
            self.tracker.view.note(f"The validation of step {step} is left out: trainer.val_only=true repeats it.")
            return {}
        trajectories = [trajectory for batch in sampled for trajectory in batch]
        self.tracker.record_validation(step, trajectories)
        return validation_metrics(trajectories) if trajectories else {}
