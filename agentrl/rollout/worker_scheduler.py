"""Hands trajectories out to rollout workers.

Invariants:
- a group is made by one worker, so that its trajectories share a prompt's cache, and rows are handed out in order, each
  to the worker that has the fewest trajectories under way;
- at most `max_concurrent` trajectories are under way on all workers together, and the oldest groups begin first;
- what a worker had not finished when it died starts over on another one, with the same seeds; after `retries` deaths in
  one group, what is missing of it is an infrastructure error;
- rewards are computed by the workers, but here where a function sees a whole batch, where a network judges, or where
  the batch does not wait for its scores.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from agentrl.core.errors import plural
from agentrl.rollout.batch_scheduler import BatchRun, BatchScheduler, SamplingOf, task_group
from agentrl.rollout.group_jobs import GroupJob, failed
from agentrl.trajectory.trajectory import Trajectory


class WorkerLost(Exception):
    """A worker died before it had finished a job."""


class GroupWorker(Protocol):
    """Runs jobs in another process."""

    name: str
    """For messages: "rollout worker 3"."""
    load: int
    """Trajectories under way there; the scheduler counts them."""

    @property
    def serving(self) -> bool:
        """Whether it takes jobs."""

    def run(self, job: GroupJob) -> AsyncGenerator[Trajectory, None]:
        """The trajectories of the job as they finish. Raises WorkerLost, and the job's error."""


@dataclass(kw_only=True)
class WorkerScheduler(BatchScheduler):
    """Makes trajectories on many workers."""

    workers: Sequence[GroupWorker]
    retries: int
    """Deaths of workers that one group survives."""
    scored_here: bool = False
    """Whether all rewards are computed here."""
    _door: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the group that gets its slots; others wait in order."""

    async def make(self, batch: BatchRun) -> None:
        """Send each group to a worker, which also compares its trajectories with the template."""
        here = self.scored_here or not batch.scored
        made: dict[str, Trajectory] = {}
        if here and self.scorer is not None:
            self.scorer.expect([job.key for job in batch.jobs])
        async with task_group() as group:

            def take(trajectory: Trajectory) -> None:
                made[trajectory.key] = trajectory
                if here:
                    self.finish(batch, trajectory, group)
                else:
                    batch.on_done(trajectory)

            for _, same in groupby(batch.jobs, lambda job: job.row.uid):
                group.create_task(self._group(list(same), batch.sampling, take, scored=not here))
        batch.jobs[:] = [made[job.key] for job in batch.jobs]

    async def _group(
        self, jobs: list[Trajectory], sampling: SamplingOf, take: Callable[[Trajectory], None], *, scored: bool
    ) -> None:
        """Make the trajectories of one row, also where workers die."""
        missing = {job.key: job for job in jobs}
        for _ in range(self.retries + 1):
            trajectories = {job.key: (job.sample, sampling(job)) for job in missing.values()}
            work = GroupJob(jobs[0].row, trajectories, scored)
            try:
                async with aclosing(self._made(work)) as made:
                    async for trajectory in made:
                        del missing[trajectory.key]
                        take(trajectory)
                return
            except WorkerLost as lost:
                why = f"{lost}, {plural(self.retries + 1, 'time')} in a row"
        for job in missing.values():
            take(failed(job, why))

    async def _made(self, job: GroupJob) -> AsyncGenerator[Trajectory, None]:
        """The trajectories of a job, by the worker with the least load, when slots are free. Each that is finished
        counts no more as load, and gives its slot back."""
        left = len(job.trajectories)
        held = min(left, self.max_concurrent)
        async with self._door:
            await _acquire(self.slots, held)
        worker = min(self.workers, key=lambda worker: (not worker.serving, worker.load))
        worker.load += left
        try:
            async with aclosing(worker.run(job)) as made:
                async for trajectory in made:
                    worker.load, left = worker.load - 1, left - 1
                    held = self._given_back(held, left)
                    yield trajectory
        finally:
            worker.load -= left
            self._given_back(held, 0)

    def _given_back(self, held: int, left: int) -> int:
        """Release the slots that exceed `left`; the number of the others."""
        for _ in range(held - left):
            self.slots.release()
        return min(held, left)


async def _acquire(slots: asyncio.Semaphore, count: int) -> None:
    """Several slots, or none where the wait is cancelled."""
    async with AsyncExitStack() as stack:
        for _ in range(count):
            await stack.enter_async_context(slots)
        stack.pop_all()
