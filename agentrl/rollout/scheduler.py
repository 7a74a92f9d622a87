"""Runs trajectories independently of each other.

Invariants:
- a failure costs only its own trajectory: it is retried, and then returned as an infrastructure error, never scored and
  never raised; the batch raises only when all of its trajectories failed;
- a retry has its own seed, so it does not repeat the failure; a timeout is retried only if the settings ask for it;
- every key that was opened on the engine is released;
- a deterministic engine waits for every open key: all keys that run at once are opened before the first request, and
  the next key of a slot before its last one is released, so that timing does not decide which requests share a batch;
- a container of a row's own outlives its conversation where the reward function looks into it, and ends with the score;
- scoring is a task of its own and overlaps with generation; so is the comparison with the template, one trajectory at a
  time, so that conversations that end together do not delay the next requests; a run that is not `compared` leaves it
  to a later `compare`;
- a run that does not wait for its scores leaves their tasks to `settle`, which waits for all of them;
- batches that run beside each other share the limit of concurrent trajectories, and the oldest gets free slots first;
- the result has the order of the rows.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from agentrl.core.blocking import LoopWatch
from agentrl.engines.engine import Sampling
from agentrl.rollout.attempt import attempt
from agentrl.rollout.garbage import deferred_collection
from agentrl.rollout.loops.base import AgentLoop, Environment
from agentrl.rollout.seeds import seed_for
from agentrl.tasks.runner import TaskRunner
from agentrl.trajectory.drops import check_drops
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory

log = logging.getLogger(__name__)

OnDone = Callable[[Trajectory], None]
SamplingOf = Callable[[Trajectory], Sampling]


class TrajectoryScorer(Protocol):
    """Gives finished trajectories their reward; see `agentrl.rewards.Scorer`."""

    async def score(self, trajectory: Trajectory) -> None:
        """Set the reward; a failure becomes the trajectory's outcome and is not raised, a UserError is."""

    def expect(self, keys: Sequence[str]) -> None:
        """Announce trajectories that are scored together: `score` is called with each of them."""

    async def close(self) -> None:
        """Stop all work."""


class Unscored:
    """A scorer for trajectories whose rewards are computed elsewhere."""

    async def score(self, trajectory: Trajectory) -> None:
        """Nothing: the reward stays None."""

    def expect(self, keys: Sequence[str]) -> None:
        """Nothing to prepare."""

    async def close(self) -> None:
        """Nothing runs."""


UNSCORED = Unscored()


@dataclass(kw_only=True)
class Unsettled:
    """Scores that no `run` waits for."""

    unscored: list[asyncio.Task[Trajectory]] = field(default_factory=list)
    """Their tasks."""
    watch: LoopWatch = field(default_factory=LoopWatch)
    """Warns of user functions that block the event loop."""

    async def settle(self) -> None:
        """Wait for the outstanding scores. Raises TooManyDrops when all of them failed."""
        try:
            with self.watch.watching():
                check_drops(await asyncio.gather(*self.unscored), 1.0)
        finally:
            self.unscored = []

    def drop(self) -> None:
        """Cancel the outstanding scores; may be called from any thread."""
        for task in self.unscored:
            task.get_loop().call_soon_threadsafe(task.cancel)


@dataclass
class Scheduler(Unsettled):
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
    """Whether a timeout counts as one."""
    slots: asyncio.Semaphore | None = None
    """Of `run_beside`."""
    tasks: TaskRunner = field(default_factory=TaskRunner)
    """Containers of rows that ask for one."""

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
        """`n` trajectories a row, group by group. Raises TooManyDrops when all of them failed.

        Without `scored` it returns when the last conversation ends; `settle` waits for the scores. Without `compared`
        nothing is compared with the template.
        """
        jobs = jobs_of(rows, n, tag)
        self.scorer.expect([job.key for job in jobs])
        unscored = None if scored else self.unscored
        with deferred_collection(), self.watch.watching() as pulse:
            await ConcurrentJobs(self, jobs, lambda _: sampling, on_done, unscored, compared=compared).run()
        for job in jobs:
            job.loop_lag = pulse.longest
        check_drops(jobs, 1.0)
        return jobs

    async def run_beside(
        self, rows: Sequence[Row], *, n: int, sampling: SamplingOf, tag: str, finished: dict[int, Trajectory]
    ) -> list[Trajectory]:
        """The same beside other batches. `finished` gets each scored trajectory by its index; those in it are not run.

        Raises TooManyDrops when all failed.
        """

        async def make(missing: list[Trajectory], finish: OnDone) -> None:
            self.scorer.expect([job.key for job in missing])
            with self.watch.watching() as pulse:
                await ConcurrentJobs(self, missing, sampling, finish, None, self.shared_slots()).run()
            for job in missing:
                job.loop_lag = pulse.longest

        return await completed(jobs_of(rows, n, tag), finished, make)

    def shared_slots(self) -> asyncio.Semaphore:
        """Those of trajectories that run beside other batches."""
        self.slots = self.slots or asyncio.Semaphore(self.max_concurrent)
        return self.slots

    async def run_with_retries(self, job: Trajectory, sampling: Sampling) -> Trajectory:
        """Run a trajectory; retry it after infrastructure failures, at most `retries` times."""
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
        """Record where the template would render the conversation differently.

        The sampled tokens are still trained on; a mismatch is only logged and counted.
        """
        if trajectory.outcome is Outcome.INFRA_ERROR or not trajectory.templated:
            return
        prompt = len(trajectory.row.prompt)
        turns = [i for i, message in enumerate(trajectory.messages) if i >= prompt and message["role"] == "assistant"]
        answered = [ledger for ledger in trajectory.ledgers if ledger.model_tokens]
        mismatches = [found for ledger in answered if (found := self._mismatch(trajectory, ledger, turns))]
        if mismatches:
            trajectory.extra["template_mismatch"] = "; ".join(mismatches)
            log.debug("%s: %s", trajectory.key, mismatches)

    def _mismatch(self, trajectory: Trajectory, ledger: Ledger, turns: Sequence[int]) -> str:
        """The difference between a ledger and the template's rendering up to its last turn; "" without one.

        Only the first sample of a group is traced: tracing may cost more than the conversation itself.
        """
        last = ledger.turns[-1]
        messages = trajectory.messages[: turns[last] + 1] if last < len(turns) else trajectory.messages
        messages = [message for message in messages if message.get("side", ledger.side) == ledger.side]
        trace = trajectory.sample == 0
        ids, prompt = ledger.ids, ledger.prompt_length
        mismatch = self.env.chat.check_trajectory(messages, ids, trajectory.schemas, trace=trace, prompt=prompt)
        return "" if mismatch is None else str(mismatch)

    async def _try(self, job: Trajectory, sampling: Sampling) -> Trajectory:
        trajectory = Trajectory(job.row, job.key, job.sample)
        kind = self.loop_for(job.row)

        async def agent(timeout: float | None = None) -> None:
            await attempt(kind(self.env), trajectory, sampling, self.timeout, timeout)

        await (self.tasks.run(trajectory, agent, kind.container_spec) if job.row.task else agent())
        return trajectory


class ConcurrentJobs:
    """Runs the jobs of one batch, at most `max_concurrent` at a time; each result replaces its job in the list."""

    def __init__(
        self,
        scheduler: Scheduler,
        jobs: list[Trajectory],
        sampling: SamplingOf,
        on_done: OnDone,
        unscored: list[asyncio.Task[Trajectory]] | None,
        slots: asyncio.Semaphore | None = None,
        scorer: TrajectoryScorer | None = None,
        *,
        compared: bool = True,
    ) -> None:
        """`unscored` gets the tasks of the scores; None: `run` waits for them. `slots`: shared with other batches; a
        semaphore serves those first that have waited longest, so all jobs wait for it from the start. `scorer`: in
        place of the scheduler's. `compared`: with the template."""
        self.scheduler, self.jobs, self.sampling, self.on_done = scheduler, jobs, sampling, on_done
        self.unscored = unscored
        self.slots: AbstractAsyncContextManager[Any] = slots or nullcontext()
        self.engine, self.scorer = scheduler.env.engine, scorer or scheduler.scorer
        self.width = len(jobs) if slots else min(scheduler.max_concurrent, len(jobs))
        self.waiting = iter(range(self.width, len(jobs)))
        self.compared, self.comparing = compared, asyncio.Lock()

    async def run(self) -> None:
        """Finish every job; the first error cancels the others and is raised itself, not in an ExceptionGroup."""
        self.scheduler.tasks.expect(job.row for job in self.jobs)
        for job in self.jobs[: self.width]:
            self.engine.open(job.key)
        try:
            async with asyncio.TaskGroup() as group:
                for i in self._first():
                    group.create_task(self._work(i, group))
        except BaseException as error:
            await self._release()
            if isinstance(error, ExceptionGroup):
                raise error.exceptions[0] from None
            raise
        finally:
            for job in self.jobs:
                self.engine.release(job.key)

    async def _release(self) -> None:
        """Stop the containers of trajectories that are no longer scored."""
        for job in self.jobs:
            await self.scheduler.tasks.release(job)

    def _first(self) -> list[int]:
        """The jobs that begin at once: the first of every group before any second, so that the engine has a prompt in
        its cache when the group's others bring it again."""
        return sorted(range(self.width), key=lambda i: self.jobs[i].sample)

    async def _work(self, i: int | None, group: asyncio.TaskGroup) -> None:
        while i is not None:
            async with self.slots:
                self.jobs[i] = await self.scheduler.run_with_retries(self.jobs[i], self.sampling(self.jobs[i]))
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
        try:
            await self.scorer.score(trajectory)
        finally:
            await self.scheduler.tasks.release(trajectory)
        if self.compared:
            async with self.comparing:
                self.scheduler.compare(trajectory)
                await asyncio.sleep(0)
        on_done(trajectory)
        return trajectory


async def completed(
    jobs: list[Trajectory],
    finished: dict[int, Trajectory],
    make: Callable[[list[Trajectory], OnDone], Awaitable[object]],
) -> list[Trajectory]:
    """All `jobs` finished, in order. `make` gets those whose index is not in `finished`, and calls its second argument
    with each that ends, which puts it there. Raises TooManyDrops when all failed."""
    places = {job.key: i for i, job in enumerate(jobs)}

    def finish(trajectory: Trajectory) -> None:
        finished[places[trajectory.key]] = trajectory

    await make([job for i, job in enumerate(jobs) if i not in finished], finish)
    made = [finished[i] for i in range(len(jobs))]
    check_drops(made, 1.0)
    return made


def jobs_of(rows: Sequence[Row], n: int, tag: str) -> list[Trajectory]:
    """`n` trajectories a row, group by group, that are still to be made."""
    return [Trajectory(row, f"{tag}/{row.uid}/{sample}", sample) for row in rows for sample in range(n)]
