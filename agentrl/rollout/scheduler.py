"""Runs trajectories, each free of the others.

Invariants:
- a failure of one trajectory costs that trajectory: it is tried again, then handed on as an infrastructure
  error, never scored and never raised; only when all of a batch failed does the batch raise;
- a retry has a seed of its own, so it does not repeat what failed; what took too long is tried again only where that
  is asked for;
- every key that was opened on the engine is released;
- a deterministic engine, which waits for every open key, sees all keys that will run at once before the first
  request, and a lane's next key before its last one goes: what runs together never depends on timing;
- scoring is a task of its own, so it overlaps with generation and holds up no engine; so is the comparison with
  the template, one trajectory at a time: conversations that end together must not hold up the next requests;
- a run that does not wait for its scores leaves their tasks to `settle`, which every score has come by;
- the order of the result is the order of the rows, whatever finished first.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from agentrl.core.blocking import Call, LoopWatch, attributed
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import Sampling
from agentrl.rollout.garbage import deferred_collection
from agentrl.rollout.loops.base import AgentLoop, Environment
from agentrl.rollout.seeds import seed_for
from agentrl.trajectory.drops import check_drops
from agentrl.trajectory.ledger import Ledger, LedgerError
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Finish, Outcome, Trajectory

log = logging.getLogger(__name__)

OnDone = Callable[[Trajectory], None]


class TrajectoryScorer(Protocol):
    """Gives finished trajectories their reward; see `agentrl.rewards.Scorer`."""

    async def score(self, trajectory: Trajectory) -> None:
        """Set the reward; a failure becomes the trajectory's outcome and is not raised, a UserError is."""

    def expect(self, trajectories: int) -> None:
        """Announce the number of calls of `score` that come before anybody waits for all of them."""

    async def close(self) -> None:
        """Stop all work."""


@dataclass
class Scheduler:
    """Turns rows into scored trajectories."""

    env: Environment
    loop_for: Callable[[Row], type[AgentLoop]]
    scorer: TrajectoryScorer
    max_concurrent: int
    timeout: float
    """Wall seconds for one try of one trajectory."""
    retries: int
    """Further tries after an infrastructure failure."""
    retry_timeouts: bool = False
    """Whether `timeout` counts as one."""
    unscored: list[asyncio.Task[Trajectory]] = field(default_factory=list)
    """Scores under way that no `run` waits for."""
    watch: LoopWatch = field(default_factory=LoopWatch)
    """Warns of users' functions that block the event loop."""

    async def run(
        self,
        rows: Sequence[Row],
        *,
        n: int,
        sampling: Sampling,
        tag: str,
        on_done: OnDone = lambda _: None,
        scored: bool = True,
    ) -> list[Trajectory]:
        """`n` trajectories a row, group by group. Raises TooManyDrops when not one of them got through.

        Without `scored` it returns when the last conversation ends; `settle` waits for the scores.
        """
        jobs = [Trajectory(row, f"{tag}/{row.uid}/{sample}", sample) for row in rows for sample in range(n)]
        self.scorer.expect(len(jobs))
        with deferred_collection(), self.watch.watching() as pulse:
            await ConcurrentJobs(self, jobs, sampling, on_done, None if scored else self.unscored).run()
        for job in jobs:
            job.loop_lag = pulse.longest
        check_drops(jobs, 1.0)
        return jobs

    async def settle(self) -> None:
        """Wait for the scores that are still out. Raises TooManyDrops when not one trajectory of theirs has any."""
        try:
            with self.watch.watching():
                check_drops(await asyncio.gather(*self.unscored), 1.0)
        finally:
            self.unscored = []

    def drop(self) -> None:
        """Let go of the scores that `settle` waits for, from whichever thread."""
        for task in self.unscored:
            task.get_loop().call_soon_threadsafe(task.cancel)

    async def run_with_retries(self, job: Trajectory, sampling: Sampling) -> Trajectory:
        """Try until it works, the retries are used up, or another try would take too long again."""
        trajectory = await self._try(job, sampling)
        for retry in range(1, self.retries + 1):
            if not self._worth_a_retry(trajectory):
                break
            seed = seed_for(sampling.seed, "retry", retry)
            trajectory = await self._try(job, replace(sampling, seed=seed))
        return trajectory

    def _worth_a_retry(self, trajectory: Trajectory) -> bool:
        late = trajectory.finish == "timeout"
        return trajectory.outcome is Outcome.INFRA_ERROR and (self.retry_timeouts or not late)

    def compare(self, trajectory: Trajectory) -> None:
        """Note where the template would have written the conversation differently.

        The sampled tokens stay what is trained on; that the template reads differently is told and counted.
        """
        if trajectory.outcome is Outcome.INFRA_ERROR or not trajectory.templated:
            return
        begun = len(trajectory.row.prompt)
        turns = [i for i, message in enumerate(trajectory.messages) if i >= begun and message["role"] == "assistant"]
        answered = [ledger for ledger in trajectory.ledgers if ledger.model_tokens]
        told = [told for ledger in answered if (told := self._mismatch(trajectory, ledger, turns))]
        if told:
            trajectory.extra["template_mismatch"] = "; ".join(told)
            log.debug("%s: %s", trajectory.key, told)

    def _mismatch(self, trajectory: Trajectory, ledger: Ledger, turns: Sequence[int]) -> str:
        """Where a ledger, which ends with one of the turns, reads otherwise than the template. "" where it does not."""
        last = ledger.turns[-1]
        messages = trajectory.messages[: turns[last] + 1] if last < len(turns) else trajectory.messages
        mismatch = self.env.chat.check_trajectory(messages, ledger.ids, trajectory.schemas)
        return "" if mismatch is None else str(mismatch)

    async def _try(self, job: Trajectory, sampling: Sampling) -> Trajectory:
        trajectory = Trajectory(job.row, job.key, job.sample)
        # The one place where a trajectory's trouble is caught: engine, tools, interaction and a user's own loop
        # all run in here.
        limit = asyncio.timeout(self.timeout)
        try:
            async with limit:
                loop = self.loop_for(job.row)(self.env)
                call = Call(f"agent loop {type(loop).__name__}.run", self.timeout)
                await attributed(loop.run(trajectory, sampling), call)
            for ledger in trajectory.ledgers:
                ledger.check()
        except UserError:
            raise
        except InfraError as error:
            _fail(trajectory, "error", str(error))
        except LedgerError as error:
            trajectory.extra["ledger_violation"] = str(error)
            _fail(trajectory, "error", f"ledger: {error}")
        except Exception as error:
            # Other people's code raises TimeoutError, too: of a socket, say.
            if isinstance(error, TimeoutError) and limit.expired():
                _fail(trajectory, "timeout", f"took longer than rollout.trajectory_timeout={self.timeout:g} s")
            else:
                log.exception("trajectory %s", trajectory.key)
                _fail(trajectory, "error", f"{type(error).__name__}: {error}")
        return trajectory


class ConcurrentJobs:
    """`max_concurrent` lanes that work through the jobs of one batch, each in place."""

    def __init__(
        self,
        scheduler: Scheduler,
        jobs: list[Trajectory],
        sampling: Sampling,
        on_done: OnDone,
        unscored: list[asyncio.Task[Trajectory]] | None,
    ) -> None:
        """Tasks that score go to `unscored`; where that is None, `run` waits for them."""
        self.scheduler, self.jobs, self.sampling, self.on_done = scheduler, jobs, sampling, on_done
        self.unscored = unscored
        self.engine = scheduler.env.engine
        self.width = min(scheduler.max_concurrent, len(jobs))
        self.waiting = iter(range(self.width, len(jobs)))
        self.comparing = asyncio.Lock()

    async def run(self) -> None:
        """Finish every job; the first error cancels the rest and is raised bare, not in a group."""
        for job in self.jobs[: self.width]:
            self.engine.open(job.key)
        try:
            async with asyncio.TaskGroup() as group:
                for i in range(self.width):
                    group.create_task(self._work(i, group))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            for job in self.jobs:
                self.engine.release(job.key)

    async def _work(self, i: int | None, group: asyncio.TaskGroup) -> None:
        while i is not None:
            self.jobs[i] = await self.scheduler.run_with_retries(self.jobs[i], self.sampling)
            following = next(self.waiting, None)
            if following is not None:
                self.engine.open(self.jobs[following].key)
            self.engine.release(self.jobs[i].key)
            self._finish(self.jobs[i], group)
            i = following

    def _finish(self, trajectory: Trajectory, group: asyncio.TaskGroup) -> None:
        if self.unscored is None:
            group.create_task(self._score(trajectory, self.on_done))
            return
        self.unscored.append(asyncio.create_task(self._score(trajectory)))
        self.on_done(trajectory)

    async def _score(self, trajectory: Trajectory, on_done: OnDone = lambda _: None) -> Trajectory:
        await self.scheduler.scorer.score(trajectory)
        async with self.comparing:
            self.scheduler.compare(trajectory)
            await asyncio.sleep(0)
        on_done(trajectory)
        return trajectory


def _fail(trajectory: Trajectory, finish: Finish, error: str) -> None:
    trajectory.outcome = Outcome.INFRA_ERROR
    trajectory.finish = finish
    trajectory.error = error
