"""The scheduler: trajectories free of one another, failures contained, order kept."""

import asyncio
import logging
import os
import signal
import time
from typing import Any

import pytest

from agentrl.config.schema import Reward
from agentrl.core.errors import InfraError, UserError
from agentrl.core.stopping import Interrupted
from agentrl.engines.engine import Sampling
from agentrl.rewards.function import RewardFn
from agentrl.rewards.scorer import Scorer
from agentrl.rollout.cache_watch import CacheWatch
from agentrl.rollout.loops import RolloutContext, ToolAgent
from agentrl.rollout.rollouts import Rollouts
from agentrl.rollout.scheduler import Scheduler
from agentrl.tracking.metrics import rollout_metrics
from agentrl.trajectory.drops import TooManyDrops
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.rollout.scripted import environment, row, says


def one(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    return float(ground_truth in solution_str)


def scheduler(
    env: RolloutContext,
    *,
    timeout: float = 20.0,
    retries: int = 1,
    max_concurrent: int = 64,
    retry_timeouts: bool = False,
) -> Scheduler:
    fn = RewardFn(one, "one", {}, frozenset({"extra_info"}))
    scorer = Scorer(fn, Reward(tool_weight=1.0, interaction_weight=1.0, num_workers=4), env.chat.decode)
    return Scheduler(
        env=env,
        loop_for=lambda _: ToolAgent,
        scorer=scorer,
        max_concurrent=max_concurrent,
        timeout=timeout,
        retries=retries,
        retry_timeouts=retry_timeouts,
    )


async def run(env: RolloutContext, rows: int = 3, n: int = 2, **options: Any) -> list[Trajectory]:
    batch = [row(f"r:{i}") for i in range(rows)]
    return await scheduler(env, **options).run(batch, n=n, sampling=Sampling(64, seed=1), tag="1")


async def test_results_come_in_order_and_scored_and_released() -> None:
    env, engine = environment(says("The answer is 5 ."))
    done = await run(env)
    assert [(t.row.uid, t.sample) for t in done] == [(f"r:{i}", k) for i in range(3) for k in range(2)]
    assert all(t.reward == 1.0 and t.trainable for t in done)
    assert sorted(engine.opened) == sorted(set(engine.released)) == sorted(t.key for t in done)
    assert len(set(engine.seeds)) == 6


async def test_the_first_of_every_group_asks_before_any_second() -> None:
    env, engine = environment(says("The answer is 5 ."))
    await run(env, rows=3, n=2)
    assert list(engine.prompts) == [f"1/r:{i}/{k}" for k in range(2) for i in range(3)]


async def test_seeds_depend_on_what_and_not_on_when() -> None:
    env, first = environment(says("The answer is 5 ."))
    await run(env)
    env, second = environment(says("The answer is 5 ."))
    await run(env, max_concurrent=1)
    assert sorted(map(str, first.seeds)) == sorted(map(str, second.seeds))


@pytest.mark.prevents("one failed rollout ends the step")
async def test_one_failure_costs_one_trajectory() -> None:
    broken = lambda key, turn: InfraError("engine gone") if key == "1/r:1/0" else "The answer is 5 .<|im_end|>"  # noqa: E731
    env, engine = environment(broken)
    done = await run(env)
    failed = [t for t in done if t.outcome is Outcome.INFRA_ERROR]
    assert [t.key for t in failed] == ["1/r:1/0"]
    assert failed[0].error == "engine gone"
    assert failed[0].reward is None
    assert not failed[0].trainable
    assert len(engine.prompts["1/r:1/0"]) == 2  # tried again


@pytest.mark.prevents("log-probs, masks and tokens get out of step on a retry or a truncation")
async def test_a_second_try_that_works_leaves_no_trace_of_the_first() -> None:
    failures = {"1/r:0/0": 1}

    def script(key: str, turn: int) -> str | Exception:
        if failures.pop(key, 0):
            return InfraError("hiccup")
        return "The answer is 5 .<|im_end|>"

    env, _ = environment(script)
    done = await run(env)
    assert all(t.outcome is Outcome.OK and t.reward == 1.0 and len(t.ledgers) == 1 for t in done)


async def test_all_failing_is_an_error_of_the_run() -> None:
    env, _ = environment(lambda key, turn: InfraError("engine gone"))
    with pytest.raises(
        InfraError, match=r"took 6 of 6 trajectories; the most frequent cause \(6 of 6\): engine gone; fix that$"
    ):
        await run(env)


async def test_a_mistake_of_the_person_ends_the_run_bare() -> None:
    env, _ = environment(says("x"), prompt_length=3)
    with pytest.raises(UserError, match="3"):
        await run(env)


async def test_bugs_in_a_loop_are_contained_and_named() -> None:
    def script(key: str, turn: int) -> str | Exception:
        return ZeroDivisionError("oh") if key.endswith("/1") else "The answer is 5 .<|im_end|>"

    env, _ = environment(script)
    done = await run(env)
    assert [t.error for t in done if t.sample == 1] == ["ZeroDivisionError: oh"] * 3
    assert all(t.reward == 1.0 for t in done if t.sample == 0)


@pytest.mark.prevents("a retry repeats the failure: the same seed samples the same loop")
async def test_a_retry_has_a_seed_of_its_own() -> None:
    """The same seed would draw what failed once more; those that did not fail keep theirs."""
    fine, first = environment(says("The answer is 5 ."))
    await run(fine)
    failures = {"1/r:1/0": 2}

    def script(key: str, turn: int) -> str | Exception:
        failures[key] = failures.get(key, 0) - 1
        return InfraError("hiccup") if failures[key] >= 0 else "The answer is 5 .<|im_end|>"

    retried, second = environment(script)
    done = await run(retried, retries=2)
    assert all(t.outcome is Outcome.OK for t in done)
    assert len(second.seeds) == len(set(second.seeds)) == 8
    assert set(first.seeds) < set(second.seeds)
    again, third = environment(lambda key, turn: script(key, turn))
    failures.clear()
    failures["1/r:1/0"] = 2
    await run(again, retries=2)
    assert sorted(map(str, third.seeds)) == sorted(map(str, second.seeds))  # a retry repeats exactly, too


@pytest.mark.parametrize(("retry_timeouts", "tries"), [(False, 1), (True, 3)])
async def test_what_took_too_long_is_not_tried_again_unless_asked_for(retry_timeouts: bool, tries: int) -> None:
    env, engine = environment(says("The answer is 5 ."))
    seeds = []

    async def looping(token_ids, sampling, *, key, media=()):  # type: ignore[no-untyped-def]
        seeds.append(sampling.seed)
        return await asyncio.sleep(60)

    engine.generate = looping  # type: ignore[method-assign, assignment]
    with pytest.raises(TooManyDrops, match=r"took longer than rollout\.trajectory_timeout=0\.2 s; raise it"):
        await run(env, rows=1, n=1, timeout=0.2, retries=2, retry_timeouts=retry_timeouts)
    assert len(seeds) == len(set(seeds)) == tries


async def test_a_trajectory_that_takes_too_long_is_masked() -> None:
    env, engine = environment(says("The answer is 5 ."))
    plain = engine.generate

    async def slow(token_ids, sampling, *, key, media=()):  # type: ignore[no-untyped-def]
        if key == "1/r:0/0":
            await asyncio.sleep(60)
        return await plain(token_ids, sampling, key=key)

    engine.generate = slow  # type: ignore[method-assign]
    done = await run(env, timeout=0.3, retries=0)
    assert (done[0].finish, done[0].outcome, done[0].reward) == ("timeout", Outcome.INFRA_ERROR, None)
    assert all(t.reward == 1.0 for t in done[1:])
    assert "1/r:0/0" in engine.released


async def test_a_trajectory_that_hangs_ends_by_its_own_timeout_and_delays_no_other_batch() -> None:
    """Two batches beside each other: the second is whole while one trajectory of the first still hangs."""
    env, engine = environment(says("The answer is 5 ."))
    plain = engine.generate

    async def stuck(token_ids, sampling, *, key, media=()):  # type: ignore[no-untyped-def]
        if key == "1/r:0/1":
            await asyncio.sleep(60)
        return await plain(token_ids, sampling, key=key)

    engine.generate = stuck  # type: ignore[method-assign]
    rows, sampling, finished = [row("r:0"), row("r:1")], Sampling(64, seed=1), dict[int, Trajectory]()
    patient = scheduler(env, timeout=60.0, retries=0)
    work = patient.run_concurrently(rows, n=2, sampling=lambda _: sampling, tag="1", finished=finished)
    first = asyncio.create_task(work)
    other = await patient.run_concurrently(rows, n=2, sampling=lambda _: sampling, tag="2", finished={})
    assert all(t.reward == 1.0 for t in other)
    while len(finished) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert set(finished) == {0, 2, 3}  # the other group is whole
    assert not first.done()
    first.cancel()
    brief = scheduler(env, timeout=0.2, retries=0)
    made = await brief.run_concurrently(rows, n=2, sampling=lambda _: sampling, tag="1", finished=finished)
    assert [t.finish for t in made] == ["stop", "timeout", "stop", "stop"]
    assert [t.reward for t in made] == [1.0, None, 1.0, 1.0]


async def test_a_time_limit_of_other_peoples_code_is_not_the_trajectorys() -> None:
    late = TimeoutError("the proxy did not answer")
    env, _ = environment(lambda key, turn: late if key == "1/r:0/0" else "The answer is 5 .<|im_end|>")
    done = await run(env)
    assert (done[0].finish, done[0].error) == ("error", "TimeoutError: the proxy did not answer")


async def test_a_broken_ledger_is_a_counted_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Ledger.append_model

    def out_of_step(self: Ledger, ids: Any, logprobs: Any, **kwargs: Any) -> None:
        plain(self, ids, logprobs, **kwargs)
        if len(ids) > 6:
            self.logprobs.append(0.0)

    env, _ = environment(lambda key, turn: ("5 ." if key.endswith("0") else "5 5 5 5 5 .") + "<|im_end|>")
    monkeypatch.setattr(Ledger, "append_model", out_of_step)
    done = await run(env, retries=0)
    dropped = [t for t in done if "ledger_violation" in t.extra]
    assert 0 < len(dropped) < len(done)
    assert all(t.reward is None and "out of step" in t.extra["ledger_violation"] for t in dropped)


async def test_concurrency_is_bounded() -> None:
    env, engine = environment(says("The answer is 5 ."))
    alive: set[str] = set()
    peaks: list[int] = []

    def count_open(key: str) -> None:
        alive.add(key)
        peaks.append(len(alive))

    engine.open, engine.release = count_open, alive.discard  # type: ignore[method-assign]
    await run(env, rows=8, n=4, max_concurrent=5)
    # Five lanes; a lane opens its next key before it releases its last, so that the engine never sees a gap.
    assert max(peaks) == 6
    assert peaks[:5] == [1, 2, 3, 4, 5]
    assert not alive


async def test_all_keys_are_open_before_the_first_request() -> None:
    env, engine = environment(says("The answer is 5 ."))
    plain, seen = engine.generate, []

    async def spying(token_ids, sampling, *, key, media=()):  # type: ignore[no-untyped-def]
        seen.append(len(engine.opened))
        return await plain(token_ids, sampling, key=key)

    engine.generate = spying  # type: ignore[method-assign]
    await run(env)
    assert seen == [6] * 6


class Blocks(ToolAgent):
    """A loop of a user's own that waits without `await`."""

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        time.sleep(0.4)  # noqa: ASYNC251
        await super().run(trajectory, sampling)


async def test_a_loop_that_blocks_is_named_and_the_standstill_is_measured(caplog: pytest.LogCaptureFixture) -> None:
    env, _ = environment(says("The answer is 5 ."))
    busy = scheduler(env)
    busy.loop_for = lambda _: Blocks
    busy.watch.max_blocked = 0.2
    with caplog.at_level(logging.WARNING):
        done = await busy.run([row("r:0")], n=1, sampling=Sampling(64, seed=1), tag="1")
    assert "agent loop Blocks.run blocks the event loop at test_scheduler.py:" in caplog.text
    assert rollout_metrics(done)["perf/loop_lag_max"] > 0.2


def test_an_engine_samples_nothing_while_a_stopped_run_saves() -> None:
    env, engine = environment(says())
    rollouts: Any = object.__new__(Rollouts)
    rollouts.engine, rollouts.scheduler, rollouts.cache = engine, scheduler(env), CacheWatch(engine)

    async def stopped(*args: Any, **kwargs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)

    engine.generate = stopped  # type: ignore[method-assign]
    with asyncio.Runner() as runner, rollouts.scheduler.stop.catching():
        rollouts.run = runner.run
        with pytest.raises(Interrupted):
            rollouts._make([row("r:0")], 1, Sampling(64, seed=1), "1", lambda _: None)
    assert engine.aborts == 1
    assert engine.released == ["1/r:0/0"]
