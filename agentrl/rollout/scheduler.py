"""Runs trajectories independently of each other.

Invariants:
- a failure costs only its own trajectory: it is retried, and then returned as an infrastructure error, never scored and
  never raised;
- a retry has its own seed, so it does not repeat the failure; a timeout is retried only if the settings ask for it;
- every key that was opened on the engine is released;
- a deterministic engine waits for every open key: all keys that run at once are opened before the first request, and
  the next key of a slot before its last one is released, so that timing does not decide which requests share a batch;
- a row's container outlives its conversation where the reward function looks into it, and ends with the score;
- one trajectory at a time is compared with the template, so that conversations that end together do not delay the next
  requests; a batch that is not `compared` leaves it to the caller;
- concurrent batches share the limit of concurrent trajectories, and the oldest gets free slots first.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from agentrl.engines.engine import Sampling
from agentrl.rollout.attempt import attempt
from agentrl.rollout.batch_scheduler import BatchRun, BatchScheduler, OnDone, task_group
from agentrl.rollout.episode import seed_for
from agentrl.rollout.loops.base import AgentLoop, RolloutContext
from agentrl.rollout.teachers import RowTeachers
from agentrl.rollout.template_check import record_mismatches
from agentrl.tasks.runner import TaskRunner
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory


@dataclass(kw_only=True)
class Scheduler(BatchScheduler):
    """Makes trajectories in this process."""

    env: RolloutContext
    loop_for: Callable[[Row], type[AgentLoop]]
    timeout: float
    """Wall seconds for one try of one trajectory."""
    retries: int
    """Further tries after an infrastructure failure."""
    retry_timeouts: bool = False
    """Whether a timeout counts as one."""
    tasks: TaskRunner = field(default_factory=TaskRunner)
    """Containers of rows that ask for one."""
    teachers: RowTeachers | None = None
    """None: there are none."""

    async def make(self, batch: BatchRun) -> None:
        """Run all jobs, at most `max_concurrent` at a time."""
        jobs, engine = batch.jobs, self.env.engine
        if batch.scorer is not None:
            batch.scorer.expect([job.key for job in jobs])
        self.tasks.expect(job.row for job in jobs)
        width = len(jobs) if batch.concurrent else min(self.max_concurrent, len(jobs))
        waiting = iter(range(width, len(jobs)))
        for job in jobs[:width]:
            engine.open(job.key)
        try:
            async with task_group() as group:
                # The first of every group before any second: its prompt is then in the engine's cache for the others.
                for i in sorted(range(width), key=lambda i: jobs[i].sample):
                    group.create_task(self._work(batch, i, waiting, group))
        except BaseException:
            for job in jobs:  # they are no longer scored
                await self.tasks.release(job)
            raise
        finally:
            for job in jobs:
                engine.release(job.key)

    async def _work(self, batch: BatchRun, i: int | None, waiting: Iterator[int], group: asyncio.TaskGroup) -> None:
        """Run job `i`, and then those that are waiting, one after another."""
        jobs, engine = batch.jobs, self.env.engine
        while i is not None:
            async with self.slots if batch.concurrent else nullcontext():
                jobs[i] = await self._with_retries(jobs[i], batch.sampling(jobs[i]))
            following = next(waiting, None)
            if following is not None:
                engine.open(jobs[following].key)
            engine.release(jobs[i].key)
            self.finish(batch, jobs[i], group)
            i = following

    async def _with_retries(self, job: Trajectory, sampling: Sampling) -> Trajectory:
        """Run a trajectory; retry it after infrastructure failures, at most `retries` times."""
        kind = self.loop_for(job.row)
        for retry in range(self.retries + 1):
            trajectory = Trajectory(job.row, job.key, job.sample)
            asked = replace(sampling, seed=seed_for(sampling.seed, "retry", retry)) if retry else sampling
            agent = partial(attempt, partial(kind, self.env), sampling=asked, timeout=self.timeout)
            await (self.tasks.run(trajectory, agent, kind.container_spec) if job.row.task else agent(trajectory))
            late = trajectory.finish == "timeout" and not self.retry_timeouts
            if trajectory.outcome is not Outcome.INFRA_ERROR or late:
                break
        if self.teachers is not None:
            await self.teachers.assign(trajectory)
        return trajectory

    async def score(self, batch: BatchRun, trajectory: Trajectory, on_done: OnDone = lambda _: None) -> Trajectory:
        """Score a trajectory, as its teacher does, end its container, compare it with the template, call `on_done`."""
        scorers = [each for each in (batch.scorer, self.teachers) if each is not None]
        try:
            await asyncio.gather(*(each.score(trajectory) for each in scorers))
        finally:
            await self.tasks.release(trajectory)
        if batch.compared:
            async with batch.comparing:
                record_mismatches(self.env.chat, trajectory)
                await asyncio.sleep(0)
        on_done(trajectory)
        return trajectory
