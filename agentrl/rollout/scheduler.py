"""Runs trajectories, each free of the others.

Invariants:
- a failure of one trajectory costs that trajectory: it is tried again, then handed on as an infrastructure
  error, never scored and never raised; only when all of a batch failed does the batch raise;
- every key that was opened on the engine is released;
- a deterministic engine, which waits for every open key, sees all keys that will run at once before the first
  request, and a lane's next key before its last one goes: what runs together never depends on timing;
- scoring is a task of its own, so it overlaps with generation and holds up no engine; so is the comparison with
  the template, one trajectory at a time: conversations that end together must not hold up the next requests;
- the order of the result is the order of the rows, whatever finished first.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.chat.ledger import LedgerError
from agentrl.data.row import Row
from agentrl.errors import InfraError, UserError
from agentrl.rewards import Scorer
from agentrl.rollout.engine import Sampling
from agentrl.rollout.heap import undisturbed
from agentrl.rollout.loops.base import AgentLoop, Environment
from agentrl.rollout.trajectory import Finish, Outcome, Trajectory

log = logging.getLogger(__name__)

OnDone = Callable[[Trajectory], None]


@dataclass
class Scheduler:
    """Turns rows into scored trajectories."""

    env: Environment
    loop_for: Callable[[Row], type[AgentLoop]]
    scorer: Scorer
    max_concurrent: int
    timeout: float
    """Wall seconds for one try of one trajectory."""
    retries: int

    async def run(
        self, rows: Sequence[Row], *, n: int, sampling: Sampling, tag: str, on_done: OnDone = lambda _: None
    ) -> list[Trajectory]:
        """`n` trajectories a row, group by group. Raises InfraError when not one of them got through."""
        jobs = [Trajectory(row, f"{tag}/{row.uid}/{sample}", sample) for row in rows for sample in range(n)]
        self.scorer.expect(len(jobs))
        with undisturbed():
            await Lanes(self, jobs, sampling, on_done).run()
        failed = [t for t in jobs if t.outcome is Outcome.INFRA_ERROR]
        if failed and len(failed) == len(jobs):
            raise InfraError(f"all {len(failed)} trajectories failed; the first: {failed[0].error}")
        return jobs

    async def persist(self, job: Trajectory, sampling: Sampling) -> Trajectory:
        """Try until it works or the retries are used up."""
        for _ in range(self.retries):
            trajectory = await self._try(job, sampling)
            if trajectory.outcome is not Outcome.INFRA_ERROR:
                return trajectory
        return await self._try(job, sampling)

    def compare(self, trajectory: Trajectory) -> None:
        """Note where the template would have written the conversation differently.

        The sampled tokens stay what is trained on; that the template reads differently is told and counted.
        """
        if trajectory.outcome is Outcome.INFRA_ERROR or not trajectory.ledgers:
            return
        ids = trajectory.ledgers[-1].ids
        mismatch = self.env.chat.check_trajectory(trajectory.messages, ids, trajectory.schemas)
        if mismatch is not None:
            trajectory.extra["template_mismatch"] = str(mismatch)
            log.debug("%s: %s", trajectory.key, mismatch)

    async def _try(self, job: Trajectory, sampling: Sampling) -> Trajectory:
        trajectory = Trajectory(job.row, job.key, job.sample)
        key = trajectory.key
        # The one place where a trajectory's trouble is caught: engine, tools, interaction and a user's own loop
        # all run in here.
        try:
            async with asyncio.timeout(self.timeout):
                await self.loop_for(job.row)(self.env).run(trajectory, sampling)
            for ledger in trajectory.ledgers:
                ledger.check()
        except UserError:
            raise
        except TimeoutError:
            _fail(trajectory, "timeout", f"took longer than rollout.trajectory_timeout={self.timeout:g} s")
        except InfraError as error:
            _fail(trajectory, "error", str(error))
        except LedgerError as error:
            trajectory.extra["ledger_violation"] = str(error)
            _fail(trajectory, "error", f"ledger: {error}")
        except Exception as error:
            log.exception("trajectory %s", key)
            _fail(trajectory, "error", f"{type(error).__name__}: {error}")
        return trajectory


class Lanes:
    """`max_concurrent` lanes that work through the jobs of one batch, each in place."""

    def __init__(self, scheduler: Scheduler, jobs: list[Trajectory], sampling: Sampling, on_done: OnDone) -> None:
        self.scheduler, self.jobs, self.sampling, self.on_done = scheduler, jobs, sampling, on_done
        self.engine = scheduler.env.engine
        self.lanes = min(scheduler.max_concurrent, len(jobs))
        self.waiting = iter(range(self.lanes, len(jobs)))
        self.comparing = asyncio.Lock()

    async def run(self) -> None:
        """Finish every job; the first error cancels the rest and is raised bare, not in a group."""
        for job in self.jobs[: self.lanes]:
            self.engine.open(job.key)
        try:
            async with asyncio.TaskGroup() as group:
                for i in range(self.lanes):
                    group.create_task(self._lane(i, group))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            for job in self.jobs:
                self.engine.release(job.key)

    async def _lane(self, i: int | None, group: asyncio.TaskGroup) -> None:
        while i is not None:
            self.jobs[i] = await self.scheduler.persist(self.jobs[i], self.sampling)
            following = next(self.waiting, None)
            if following is not None:
                self.engine.open(self.jobs[following].key)
            self.engine.release(self.jobs[i].key)
            group.create_task(self._finish(self.jobs[i]))
            i = following

    async def _finish(self, trajectory: Trajectory) -> None:
        await self.scheduler.scorer.score(trajectory)
        async with self.comparing:
            self.scheduler.compare(trajectory)
            await asyncio.sleep(0)
        self.on_done(trajectory)


def _fail(trajectory: Trajectory, finish: Finish, error: str) -> None:
    trajectory.outcome = Outcome.INFRA_ERROR
    trajectory.finish = finish
    trajectory.error = error
