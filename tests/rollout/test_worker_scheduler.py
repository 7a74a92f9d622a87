"""Trajectories made by several workers are those of one scheduler."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agentrl.core.errors import InfraError, UserError
from agentrl.core.shares import VARIABLE, share_of
from agentrl.engines.engine import Sampling
from agentrl.rollout.group_jobs import GroupJob, GroupJobs
from agentrl.rollout.loops import SingleTurn
from agentrl.rollout.scheduler import Scheduler
from agentrl.rollout.worker_scheduler import WorkerLost, WorkerScheduler
from agentrl.trajectory.drops import TooManyDrops
from agentrl.trajectory.store import Stored
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.rollout.scripted import ScriptedEngine, environment, row
from tests.training.tiny import MemoryStore

STORE = MemoryStore()
SAMPLING = Sampling(max_new_tokens=32, seed=7)
ROWS = [row(f"r:{i}", f"What is {i} + 3 ?") for i in range(6)]


class Scorer:
    """Scores by the sample; counts what it is told to expect."""

    def __init__(self) -> None:
        self.expected = self.calls = 0

    async def score(self, trajectory: Trajectory) -> None:
        self.calls += 1
        await asyncio.sleep(0)
        trajectory.reward = trajectory.sample / 10

    def expect(self, keys: Sequence[str]) -> None:
        self.expected += len(keys)

    async def close(self) -> None:
        """Nothing runs."""


def scheduler(script: Callable[[str, int], str | Exception], most: int = 64) -> tuple[Scheduler, ScriptedEngine]:
    env, engine = environment(script)
    made = Scheduler(
        env=env, loop_for=lambda _: SingleTurn, scorer=Scorer(), max_concurrent=most, timeout=30.0, retries=0
    )
    return made, engine


@dataclass(eq=False)
class Worker:
    """The two ends of a rollout worker in one process; dies after `lives` trajectories."""

    name: str
    script: Callable[[str, int], str | Exception]
    lives: int = 10_000
    load: int = 0
    serving: bool = True

    def __post_init__(self) -> None:
        self.scheduler, self.engine = scheduler(self.script)
        self.end = GroupJobs(self.scheduler)

    async def run(self, job: GroupJob) -> AsyncGenerator[Trajectory, None]:
        async with aclosing(self.end.run(job)) as outlines:
            async for outline in outlines:
                self.lives -= 1
                self.serving = self.lives >= 0
                if not self.serving:
                    break
                yield Stored(replace(outline, body=STORE.put(outline.body)), job.row, STORE)
        if not self.serving:
            raise WorkerLost(f"{self.name} died")


def says(key: str, turn: int) -> str | Exception:
    return InfraError("no server") if key.endswith("r:4/1") else f"The answer is {key[-1]} .<|im_end|>"


Start = Callable[..., Worker]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Makes workers, and ends them after the test."""
    started = list[Worker]()

    def start(number: int, script: Callable[[str, int], str | Exception] = says, lives: int = 10_000) -> Worker:
        started.append(Worker(f"worker {number}", script, lives))
        return started[-1]

    yield start
    for worker in started:
        await worker.end.close()


def spread_over(workers: list[Worker], most: int = 64, retries: int = 1, **options: bool) -> WorkerScheduler:
    return WorkerScheduler(workers=workers, scorer=Scorer(), max_concurrent=most, retries=retries, **options)


def watched(spread: WorkerScheduler) -> list[int]:
    """Gets the number of trajectories under way whenever a job is sent."""
    loads = list[int]()
    for worker in spread.workers:
        send = worker.run

        def noted(job: GroupJob, send: Any = send) -> AsyncGenerator[Trajectory, None]:
            loads.append(sum(each.load for each in spread.workers))
            return send(job)

        worker.run = noted  # type: ignore[method-assign]
    return loads


def facts(made: list[Trajectory]) -> list[object]:
    return [(t.key, t.sample, t.outcome, t.error, t.reward, t.messages, [x.ids for x in t.ledgers]) for t in made]


@pytest.mark.parametrize("here", [False, True])
@pytest.mark.parametrize("scored", [False, True])
async def test_workers_make_what_one_scheduler_makes(start: Start, here: bool, scored: bool) -> None:
    alone, _ = scheduler(says)
    expected = await alone.run(ROWS, n=3, sampling=SAMPLING, tag="1")
    workers = [start(i) for i in range(2)]
    spread, finished = spread_over(workers, 12, scored_here=here), list[str]()
    most = watched(spread)
    made = await spread.run(
        ROWS, n=3, sampling=SAMPLING, tag="1", on_done=lambda t: finished.append(t.key), scored=scored
    )
    await spread.settle()
    assert facts(made) == facts(expected)
    assert sorted(finished) == sorted(t.key for t in expected)
    assert all(t.row is ROWS[i // 3] for i, t in enumerate(made))
    on_workers = sum(worker.scheduler.scorer.calls for worker in workers)  # type: ignore[attr-defined]
    assert (on_workers, spread.scorer.expected) == ((18, 0) if scored and not here else (0, 18))  # type: ignore[attr-defined]
    for worker in workers:  # whole groups, divided, and never more than the limit
        groups = [key.rpartition("/")[0] for key in worker.engine.opened]
        assert len(set(groups)) == 3
        assert worker.load == 0
    assert max(most) == 12


async def test_what_a_dead_worker_had_not_finished_starts_over(start: Start) -> None:
    alone, _ = scheduler(says)
    expected = await alone.run(ROWS, n=3, sampling=SAMPLING, tag="1")
    dying, other = start(0, lives=4), start(1)
    finished = dict[int, Trajectory]()
    spread = spread_over([dying, other], retries=5)
    made = await spread.run_concurrently(ROWS, n=3, sampling=lambda _: SAMPLING, tag="1", finished=finished)
    assert facts(made) == facts(expected) == facts([finished[i] for i in range(18)])
    assert dying.load == other.load == 0


async def test_a_row_that_kills_every_worker_is_masked(start: Start) -> None:
    workers = [start(i, lives=0) for i in range(2)]
    spread = spread_over(workers)
    with pytest.raises(TooManyDrops, match="worker . died, 2 times in a row"):
        await spread.run(ROWS[:1], n=2, sampling=SAMPLING, tag="1")
    workers[0].lives = 4  # two of the three rows survive
    made = await spread_over(workers, 2, retries=0).run(ROWS[:3], n=2, sampling=SAMPLING, tag="1")
    assert {t.outcome for t in made} == {Outcome.OK, Outcome.INFRA_ERROR}


async def test_errors_that_end_a_run_end_it(start: Start) -> None:
    def wrong(key: str, turn: int) -> str | Exception:
        return UserError("no such tool") if "r:3" in key else says(key, turn)

    spread = spread_over([start(0, wrong), start(1, wrong)])
    with pytest.raises(UserError, match="no such tool"):
        await spread.run(ROWS, n=2, sampling=SAMPLING, tag="1")
    assert all(worker.load == 0 for worker in spread.workers)


async def test_a_trajectory_that_cannot_travel_is_masked(start: Start) -> None:
    class Loop(SingleTurn):
        async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
            await super().run(trajectory, sampling)
            if trajectory.sample:
                trajectory.extra["lock"] = asyncio.get_running_loop()

    worker = start(0)
    worker.scheduler.loop_for = lambda _: Loop
    made = await spread_over([worker]).run(ROWS[:1], n=2, sampling=SAMPLING, tag="1")
    assert [t.outcome for t in made] == [Outcome.OK, Outcome.INFRA_ERROR]
    assert "cannot leave its rollout worker" in (made[1].error or "")


def test_shares_add_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_of(10, "reward.num_workers") == 10

    def share(number: int, limit: int) -> int:
        monkeypatch.setenv(VARIABLE, f"{number}/4")
        return share_of(limit, "tool 'search': max_concurrency")

    assert [share(number, 10) for number in range(4)] == [3, 3, 2, 2]
    with pytest.raises(UserError, match="tool 'search': max_concurrency=3 is a limit of the whole run"):
        share(0, 3)
