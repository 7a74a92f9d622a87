"""The group of one row as it goes to a rollout worker, and the worker's side of it.

Invariants:
- each trajectory of an errand comes back once, as soon as it is finished, also where it failed;
- an error that ends the run (UserError) comes back in place of trajectories.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from agentrl.core.blocking import Heartbeat
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import Sampling
from agentrl.rollout.garbage import deferred_collection, trim_heap
from agentrl.rollout.scheduler import UNSCORED, ConcurrentJobs, Scheduler
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory
from agentrl.trajectory.wire import Packed, pack

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Errand:
    """Trajectories of one row that one worker makes."""

    number: int
    row: Row
    keys: dict[str, int]
    """Key of each trajectory -> its index in its group."""
    samplings: dict[str, Sampling]
    """How each trajectory is sampled, by its key."""
    scored: bool
    """Whether the worker computes the rewards too."""


@dataclass(frozen=True)
class Done:
    """A finished trajectory, or the error that ended its errand."""

    errand: int
    packed: Packed | None = None
    error: BaseException | None = None


Tell = Callable[[Done], None]


@dataclass
class Errands:
    """Runs errands on a worker's scheduler. Belongs to one event loop."""

    scheduler: Scheduler
    tell: Tell
    """Gets each trajectory as it finishes."""
    stack: ExitStack = field(default_factory=ExitStack)
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _pulse: Heartbeat | None = None

    def start(self, errand: Errand) -> None:
        """Begin an errand, beside the others."""
        if self._pulse is None:
            self.stack.enter_context(deferred_collection())
            self._pulse = self.stack.enter_context(self.scheduler.watch.watching())
        if not self._tasks:
            self._pulse.longest = 0.0
        task = asyncio.create_task(self._run(errand))
        self._tasks[errand.number] = task
        task.add_done_callback(lambda _: self._over(errand.number))

    def cancel(self, number: int) -> None:
        """End an errand; nothing more comes of it."""
        if number in self._tasks:
            self._tasks[number].cancel()

    async def close(self) -> None:
        """Cancel all that still run."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.stack.close()

    def _over(self, number: int) -> None:
        self._tasks.pop(number, None)
        if not self._tasks:
            asyncio.get_running_loop().run_in_executor(None, trim_heap)

    async def _run(self, errand: Errand) -> None:
        jobs = [Trajectory(errand.row, key, sample) for key, sample in errand.keys.items()]
        try:
            await self._all(errand, jobs)
        except UserError as error:
            self.tell(Done(errand.number, error=UserError(str(error))))
        except Exception as error:  # an error of agentrl's own; a copy, because not every error can travel
            log.exception("errand %d", errand.number)
            self.tell(Done(errand.number, error=InfraError(f"{type(error).__name__}: {error}")))

    async def _all(self, errand: Errand, jobs: list[Trajectory]) -> None:
        scorer = self.scheduler.scorer if errand.scored else UNSCORED
        scorer.expect([job.key for job in jobs])

        def done(trajectory: Trajectory) -> None:
            self._send(errand.number, trajectory)

        def sampling(job: Trajectory) -> Sampling:
            return errand.samplings[job.key]

        slots = self.scheduler.shared_slots()
        await ConcurrentJobs(self.scheduler, jobs, sampling, done, None, slots, scorer).run()

    def _send(self, number: int, trajectory: Trajectory) -> None:
        trajectory.loop_lag = 0.0 if self._pulse is None else self._pulse.longest
        try:
            packed = pack(trajectory)
        except InfraError as error:
            packed = pack(failed(trajectory, str(error)))
        self.tell(Done(number, packed))


def failed(job: Trajectory, error: str) -> Trajectory:
    """A trajectory that an infrastructure failure took."""
    return Trajectory(job.row, job.key, job.sample, outcome=Outcome.INFRA_ERROR, finish="error", error=error)
