"""Spreads trajectories over rollout workers; takes the place of a `Scheduler`.

Invariants:
- a group is made by one worker, so that its trajectories share a prompt's cache (but for an answer that is sampled in
  another way, as ReMax's greedy one is), and rows are handed out in order, each
  to the worker that has the fewest trajectories under way;
- at most `max_concurrent` trajectories are under way on all workers together, and the oldest groups begin first;
- what a worker had not finished when it died starts over on another one, with the same seeds; after `retries` deaths in
  one group, what is missing of it is an infrastructure error;
- rewards are computed by the workers, but here where a function sees a whole batch, where a network judges, or where
  nobody waits for them.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from agentrl.core.plurals import plural
from agentrl.engines.engine import Sampling
from agentrl.rollout.group_jobs import GroupJob, failed
from agentrl.rollout.scheduler import OnDone, SamplingOf, TrajectoryScorer, Unsettled, completed, jobs_of
from agentrl.trajectory.drops import check_drops
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory


class WorkerLost(Exception):
    """A worker died before it had finished a job."""


class GroupWorker(Protocol):
    """Runs jobs in another process."""

    name: str
    """For messages: "rollout worker 3"."""
    load: int
    """Trajectories under way there; `Spread` counts them."""

    @property
    def serving(self) -> bool:
        """Whether it takes jobs."""

    async def run(self, job: GroupJob, take: Callable[[Trajectory], None]) -> None:
        """Return when each trajectory of the job was given to `take`. Raises WorkerLost, and the job's error."""


@dataclass
class Spread(Unsettled):
    """Turns rows into scored trajectories, on many workers. Belongs to one event loop."""

    workers: Sequence[GroupWorker]
    scorer: TrajectoryScorer
    """For the rewards that are computed here."""
    max_concurrent: int
    retries: int
    """Deaths of workers that one group survives."""
    scored_here: bool = False
    """Whether all rewards are computed here."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _slots: asyncio.Semaphore | None = None
    _door: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the group that gets its slots; others wait in order."""

    async def run(
        self,
        rows: Sequence[Row],
        *,
        n: int,
        sampling: Sampling,
        tag: str,
        on_done: OnDone = lambda _: None,
        scored: bool = True,
        compared: bool = True,
    ) -> list[Trajectory]:
        """As `Scheduler.run`; workers compare what they make, in any case."""
        jobs = jobs_of(rows, n, tag)
        made = await self._made(jobs, lambda _: sampling, on_done, scored=scored)
        check_drops(made, 1.0)
        return made

    async def run_beside(
        self, rows: Sequence[Row], *, n: int, sampling: SamplingOf, tag: str, finished: dict[int, Trajectory]
    ) -> list[Trajectory]:
        """As `Scheduler.run_beside`."""

        async def make(missing: list[Trajectory], finish: OnDone) -> None:
            await self._made(missing, sampling, finish, scored=True)

        return await completed(jobs_of(rows, n, tag), finished, make)

    def compare(self, trajectory: Trajectory) -> None:
        """Nothing is left to compare."""

    async def _made(
        self, jobs: Sequence[Trajectory], sampling: SamplingOf, on_done: OnDone, *, scored: bool
    ) -> list[Trajectory]:
        """The trajectories in the order of the jobs. Raises the first error."""
        here = self.scored_here or not scored
        made: dict[str, Trajectory] = {}
        if here:
            self.scorer.expect([job.key for job in jobs])
        try:
            async with asyncio.TaskGroup() as group:

                def take(trajectory: Trajectory) -> None:
                    made[trajectory.key] = trajectory
                    if here and scored:
                        group.create_task(self._score(trajectory, on_done))
                        return
                    if here:
                        self.unscored.append(asyncio.create_task(self._score(trajectory)))
                    on_done(trajectory)

                for _, same in groupby(jobs, lambda job: job.row.uid):
                    group.create_task(self._group(list(same), sampling, take, scored=not here))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [made[job.key] for job in jobs]

    async def _score(self, trajectory: Trajectory, on_done: OnDone = lambda _: None) -> Trajectory:
        await self.scorer.score(trajectory)
        on_done(trajectory)
        return trajectory

    async def _group(
        self, jobs: list[Trajectory], sampling: SamplingOf, take: Callable[[Trajectory], None], *, scored: bool
    ) -> None:
        """Make the trajectories of one row, also where workers die."""
        missing = {job.key: job for job in jobs}

        def taken(trajectory: Trajectory) -> None:
            del missing[trajectory.key]
            take(trajectory)

        for _ in range(self.retries + 1):
            trajectories = {job.key: (job.sample, sampling(job)) for job in missing.values()}
            work = GroupJob(next(self._numbers), jobs[0].row, trajectories, scored)
            try:
                await self._send(work, taken)
                return
            except WorkerLost as lost:
                why = f"{lost}, {plural(self.retries + 1, 'time')} in a row"
        for job in list(missing.values()):
            taken(failed(job, why))

    async def _send(self, job: GroupJob, taken: Callable[[Trajectory], None]) -> None:
        """Run a job on the worker with the least load, when slots are free."""
        slots = self._slots = self._slots or asyncio.Semaphore(self.max_concurrent)
        held = min(len(job.trajectories), self.max_concurrent)
        async with self._door:
            await _acquire(slots, held)
        worker = min(self.workers, key=lambda worker: (not worker.serving, worker.load))
        with _counted(worker, slots, len(job.trajectories), held) as finish:

            def take(trajectory: Trajectory) -> None:
                finish()
                taken(trajectory)

            await worker.run(job, take)


async def _acquire(slots: asyncio.Semaphore, count: int) -> None:
    """Several slots, or none where the wait is cancelled."""
    held = 0
    try:
        for held in range(1, count + 1):  # noqa: B007  (read where it is cancelled)
            await slots.acquire()
    except asyncio.CancelledError:
        for _ in range(held - 1):
            slots.release()
        raise


@contextmanager
def _counted(
    worker: GroupWorker, slots: asyncio.Semaphore, trajectories: int, held: int
) -> Iterator[Callable[[], None]]:
    """Count a job's trajectories as the worker's load. Yields a function to call for each that is finished, which
    gives its slot back; the rest is given back at the end."""
    left = {"load": trajectories, "slots": held}
    worker.load += trajectories

    def finish() -> None:
        worker.load -= 1
        left["load"] -= 1
        if left["slots"] > left["load"]:
            left["slots"] -= 1
            slots.release()

    try:
        yield finish
    finally:
        for _ in range(left["load"]):
            finish()
