"""The contract of rollout workers, in this process or on Ray."""

from collections.abc import Callable, Sequence
from typing import Protocol

from agentrl.rollout.stream import AdmittedBatch, Pending
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

OnDone = Callable[[Trajectory], None]
"""Called with each trajectory as it finishes."""


class RolloutWorkers(Protocol):
    """Rows in, finished trajectories out, group by group."""

    def rollout(self, rows: Sequence[Row], step: int, on_done: OnDone, *, scored: bool = True) -> list[Trajectory]:
        """`rollout.n` trajectories a row. Raises InfraError when all of them failed.

        With `scored` they have their scores; otherwise they have them when `Runtime.compute_logprobs` returns.
        """

    def compare(self, trajectories: Sequence[Trajectory]) -> None:
        """Record where the template would render conversations of `rollout` differently; in any thread, beside all
        else."""

    def begin(self, batch: AdmittedBatch) -> Pending:
        """The same for the rows of a batch, beside all else: conversations continue while the policy trains."""

    def activity(self) -> dict[str, float]:
        """Metrics of the engine since the last call: its idle time, and the requests that were interrupted."""

    def greedy(self, rows: Sequence[Row], step: int, on_done: OnDone) -> list[Trajectory]:
        """One scored trajectory a row, at temperature 0."""

    def validate(self, rows: Sequence[Row], step: int, on_done: OnDone) -> list[Trajectory]:
        """`rollout.val_kwargs.n` scored trajectories a row, sampled as `rollout.val_kwargs` says."""
