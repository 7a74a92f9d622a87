"""The group of one row as it goes to a rollout worker, and the worker's side of it.

Invariants:
- each trajectory of a job comes back once, as soon as it is finished, also where it failed;
- an error that ends the run (UserError) comes back in place of further trajectories.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import dataclass, field

from agentrl.core.blocking import Heartbeat
from agentrl.core.errors import InfraError, UserError
from agentrl.core.tasks import Tasks, cancelled
from agentrl.engines.engine import Sampling
from agentrl.rollout.batch_scheduler import BatchRun
from agentrl.rollout.gc_control import deferred_collection, trim_heap
from agentrl.rollout.scheduler import Scheduler
from agentrl.trajectory.row import Row
from agentrl.trajectory.store import Outline
from agentrl.trajectory.trajectory import Outcome, Trajectory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GroupJob:
    """Trajectories of one row that one worker makes."""

    row: Row
    trajectories: dict[str, tuple[int, Sampling]]
    """Key of each -> its index in its group, and how it is sampled."""
    scored: bool
    """Whether the worker computes the rewards too."""


@dataclass
class GroupJobs:
    """Runs jobs on a worker's scheduler. Belongs to one event loop."""

    scheduler: Scheduler
    stack: ExitStack = field(default_factory=ExitStack)
    _tasks: Tasks = field(default_factory=Tasks)
    _pulse: Heartbeat | None = None

    async def run(self, job: GroupJob) -> AsyncGenerator[Outline, None]:
        """The trajectories of a job as they finish, each an outline that has its body; several jobs run at the same
        time. Raises the error that ended the job."""
        if self._pulse is None:
            self.stack.enter_context(deferred_collection())
            self._pulse = self.stack.enter_context(self.scheduler.watch.watching())
        if not self._tasks:
            self._pulse.longest = 0.0
        finished = asyncio.Queue[Trajectory | None]()
        task = self._tasks.start(self._make(job, finished))
        task.add_done_callback(self._over)
        try:
            while (trajectory := await finished.get()) is not None:
                trajectory.loop_lag = self._pulse.longest
                yield _outline(trajectory)
            await task
        finally:
            await cancelled([task])

    async def close(self) -> None:
        """Cancel all that still run."""
        await cancelled(self._tasks)
        self.stack.close()

    def _over(self, _: asyncio.Task[None]) -> None:
        if not self._tasks:
            asyncio.get_running_loop().run_in_executor(None, trim_heap)

    async def _make(self, job: GroupJob, finished: asyncio.Queue[Trajectory | None]) -> None:
        """Put each trajectory into `finished`, and None at the end. Raises copies, because not every error can
        travel."""
        jobs = [Trajectory(job.row, key, sample) for key, (sample, _) in job.trajectories.items()]
        scorer, add = self.scheduler.scorer if job.scored else None, finished.put_nowait
        try:
            await self.scheduler.make(
                BatchRun(jobs, lambda each: job.trajectories[each.key][1], add, scorer, concurrent=True)
            )
        except UserError as error:
            raise UserError(str(error)) from None
        except Exception as error:  # an error of agentrl's own
            log.exception("a group of %s", job.row.uid)
            raise InfraError(f"{type(error).__name__}: {error}") from None
        finally:
            finished.put_nowait(None)


def _outline(trajectory: Trajectory) -> Outline:
    try:
        return Outline.of(trajectory, lambda body: body)
    except InfraError as error:
        return Outline.of(failed(trajectory, str(error)), lambda body: body)


def failed(job: Trajectory, error: str) -> Trajectory:
    """A trajectory that an infrastructure failure took."""
    return Trajectory(job.row, job.key, job.sample, outcome=Outcome.INFRA_ERROR, finish="error", error=error)
