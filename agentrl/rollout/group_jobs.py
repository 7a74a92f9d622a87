"""The group of one row as it goes to a rollout worker, and the worker's side of it.

Invariants:
- each trajectory of a job comes back once, as soon as it is finished, also where it failed;
- an error that ends the run (UserError) comes back in place of trajectories.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agentrl.core.blocking import Heartbeat
from agentrl.core.errors import InfraError, UserError
from agentrl.core.tasks import cancelled
from agentrl.engines.engine import Sampling
from agentrl.rollout.batch_scheduler import UNSCORED, BatchRun
from agentrl.rollout.gc_control import deferred_collection, trim_heap
from agentrl.rollout.scheduler import Scheduler
from agentrl.trajectory.row import Row
from agentrl.trajectory.store import Body, Outline
from agentrl.trajectory.trajectory import Outcome, Trajectory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GroupJob:
    """Trajectories of one row that one worker makes."""

    number: int
    row: Row
    trajectories: dict[str, tuple[int, Sampling]]
    """Key of each -> its index in its group, and how it is sampled."""
    scored: bool
    """Whether the worker computes the rewards too."""


@dataclass(frozen=True)
class Done:
    """A finished trajectory, or the error that ended its job."""

    job: int
    outline: Outline | None = None
    error: BaseException | None = None


Emit = Callable[[Done], None]


@dataclass
class GroupJobs:
    """Runs jobs on a worker's scheduler. Belongs to one event loop."""

    scheduler: Scheduler
    emit: Emit
    """Gets each trajectory as it finishes."""
    put: Callable[[Body], Any]
    """Stores its body, and gives the reference."""
    stack: ExitStack = field(default_factory=ExitStack)
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _pulse: Heartbeat | None = None

    def start(self, job: GroupJob) -> None:
        """Begin a job; several run at the same time."""
        if self._pulse is None:
            self.stack.enter_context(deferred_collection())
            self._pulse = self.stack.enter_context(self.scheduler.watch.watching())
        if not self._tasks:
            self._pulse.longest = 0.0
        task = asyncio.create_task(self._run(job))
        self._tasks[job.number] = task
        task.add_done_callback(lambda _: self._over(job.number))

    def cancel(self, number: int) -> None:
        """End a job; nothing more comes of it."""
        if number in self._tasks:
            self._tasks[number].cancel()

    async def close(self) -> None:
        """Cancel all that still run."""
        await cancelled(self._tasks.values())
        self.stack.close()

    def _over(self, number: int) -> None:
        self._tasks.pop(number, None)
        if not self._tasks:
            asyncio.get_running_loop().run_in_executor(None, trim_heap)

    async def _run(self, job: GroupJob) -> None:
        samplings = {key: sampling for key, (_, sampling) in job.trajectories.items()}
        jobs = [Trajectory(job.row, key, sample) for key, (sample, _) in job.trajectories.items()]
        scorer = self.scheduler.scorer if job.scored else UNSCORED
        send = partial(self._send, job.number)
        try:
            await self.scheduler.make(BatchRun(jobs, lambda each: samplings[each.key], send, scorer, concurrent=True))
        except UserError as error:
            self.emit(Done(job.number, error=UserError(str(error))))
        except Exception as error:  # an error of agentrl's own; a copy, because not every error can travel
            log.exception("job %d", job.number)
            self.emit(Done(job.number, error=InfraError(f"{type(error).__name__}: {error}")))

    def _send(self, number: int, trajectory: Trajectory) -> None:
        trajectory.loop_lag = 0.0 if self._pulse is None else self._pulse.longest
        try:
            outline = Outline.of(trajectory, self.put)
        except InfraError as error:
            outline = Outline.of(failed(trajectory, str(error)), self.put)
        self.emit(Done(number, outline))


def failed(job: Trajectory, error: str) -> Trajectory:
    """A trajectory that an infrastructure failure took."""
    return Trajectory(job.row, job.key, job.sample, outcome=Outcome.INFRA_ERROR, finish="error", error=error)
