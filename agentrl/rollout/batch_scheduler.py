"""The contract of schedulers, and what they share: they turn rows into scored trajectories, batch by batch.

Invariants:
- scoring runs in separate tasks and overlaps with generation; a batch that does not wait for its scores leaves their
  tasks to `settle`, which waits for all of them;
- a batch raises only when all of its trajectories failed, or when a user's mistake ends the run;
- the result has the order of the rows.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from agentrl.core.blocking import LoopWatch
from agentrl.core.stopping import StopRequest
from agentrl.engines.engine import Sampling
from agentrl.rewards.scorer import Scorer
from agentrl.rollout.gc_control import deferred_collection
from agentrl.trajectory.drops import check_drops
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

OnDone = Callable[[Trajectory], None]
"""Called with each trajectory as it finishes."""
SamplingOf = Callable[[Trajectory], Sampling]


@dataclass
class BatchRun:
    """Trajectories that are made together."""

    jobs: list[Trajectory]
    """A finished trajectory replaces its job, which has the same key."""
    sampling: SamplingOf
    on_done: OnDone
    scorer: Scorer | None
    """None: rewards are computed elsewhere."""
    scored: bool = True
    """Whether the batch waits for its scores; `settle` waits for them otherwise."""
    compared: bool = True
    """Whether conversations are compared with the template."""
    concurrent: bool = False
    """Whether it shares the limit of concurrent trajectories with other batches."""
    comparing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the comparison that runs."""


@dataclass(kw_only=True)
class BatchScheduler(ABC):
    """Turns rows into scored trajectories. Belongs to one event loop."""

    scorer: Scorer | None
    max_concurrent: int
    """Trajectories that run at the same time."""
    stop: StopRequest = field(default_factory=StopRequest)
    """Cancels `run` and `settle`."""
    watch: LoopWatch = field(default_factory=LoopWatch)
    """Warns of user functions that block the event loop."""
    unscored: list[asyncio.Task[Trajectory]] = field(default_factory=list)
    """Tasks of scores that no batch waits for."""

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.max_concurrent)
        """Shared by concurrent batches; it serves those first that have waited longest."""

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
        """`n` trajectories a row, group by group. Raises TooManyDrops when all of them failed, and Interrupted.

        Without `scored` it returns when the last conversation ends; `settle` waits for the scores. Without `compared`
        nothing is compared with the template.
        """
        jobs = jobs_of(rows, n, tag)
        with self.stop.cancelling(), deferred_collection(), self._watching(jobs):
            await self.make(BatchRun(jobs, lambda _: sampling, on_done, self.scorer, scored, compared))
        check_drops(jobs, 1.0)
        return jobs

    async def run_concurrently(
        self, rows: Sequence[Row], *, n: int, sampling: SamplingOf, tag: str, finished: dict[int, Trajectory]
    ) -> list[Trajectory]:
        """Make a batch while others run. `finished` gets each scored trajectory by its index; those in it are not made.

        Raises TooManyDrops when all failed.
        """
        jobs = jobs_of(rows, n, tag)
        indices = {job.key: i for i, job in enumerate(jobs)}

        def finish(trajectory: Trajectory) -> None:
            finished[indices[trajectory.key]] = trajectory

        missing = [job for i, job in enumerate(jobs) if i not in finished]
        with self._watching(missing):
            await self.make(BatchRun(missing, sampling, finish, self.scorer, concurrent=True))
        made = [finished[i] for i in range(len(jobs))]
        check_drops(made, 1.0)
        return made

    @abstractmethod
    async def make(self, batch: BatchRun) -> None:
        """Finish every job of a batch. The first error cancels the others and is raised."""

    @contextmanager
    def _watching(self, jobs: list[Trajectory]) -> Iterator[None]:
        """Watch the event loop while the body makes `jobs`, and write its longest standstill into them."""
        with self.watch.watching() as pulse:
            yield
        for job in jobs:
            job.loop_lag = max(job.loop_lag, pulse.longest)

    async def settle(self) -> None:
        """Wait for the outstanding scores. Raises TooManyDrops when all of them failed, and Interrupted."""
        try:
            with self.stop.cancelling(), self.watch.watching():
                check_drops(await asyncio.gather(*self.unscored), 1.0)
        finally:
            self.unscored = []

    def drop(self) -> None:
        """Cancel the outstanding scores; may be called from any thread."""
        for task in self.unscored:
            task.get_loop().call_soon_threadsafe(task.cancel)

    def finish(self, batch: BatchRun, trajectory: Trajectory, group: asyncio.TaskGroup) -> None:
        """Score a trajectory: as one of the batch's tasks, or as one that `settle` waits for."""
        if batch.scored:
            group.create_task(self.score(batch, trajectory, batch.on_done))
            return
        self.unscored.append(asyncio.create_task(self.score(batch, trajectory)))
        batch.on_done(trajectory)

    async def score(self, batch: BatchRun, trajectory: Trajectory, on_done: OnDone = lambda _: None) -> Trajectory:
        """Score a trajectory, then call `on_done`."""
        if batch.scorer is not None:
            await batch.scorer.score(trajectory)
        on_done(trajectory)
        return trajectory


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup whose first error is raised itself, not in an ExceptionGroup."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def jobs_of(rows: Sequence[Row], n: int, tag: str) -> list[Trajectory]:
    """`n` trajectories a row, group by group, that are still to be made."""
    return [Trajectory(row, f"{tag}/{row.uid}/{sample}", sample) for row in rows for sample in range(n)]
