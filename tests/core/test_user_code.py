"""What the guard for other people's code promises beyond what the tools' tests show."""

import asyncio
import contextvars
import threading
import time

import pytest

from agentrl.core.user_code import Cleanup, UserFunction


async def test_no_timeout_means_no_limit():
    assert await UserFunction(lambda x: x + 1).run((1,), {}, timeout=None) == 2


def test_fit_follows_the_signature():
    def some(a, *, b, **rest):
        pass

    def few(a, b=1):
        pass

    assert UserFunction(some).fit({"b": 1, "c": 2}) == {"b": 1, "c": 2}
    assert UserFunction(few).fit({"b": 1, "c": 2}) == {"b": 1}


async def test_cancelling_the_caller_cancels_the_function():
    ended = []

    async def slow():
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(True)

    task = asyncio.create_task(UserFunction(slow).run((), {}, timeout=600))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


async def test_threads_still_at_work_are_known():
    threads, go_on = set(), threading.Event()
    with pytest.raises(TimeoutError):
        await UserFunction(lambda: go_on.wait(60)).run((), {}, timeout=0.05, threads=threads)
    assert len(threads) == 1
    go_on.set()
    await asyncio.wait(threads)
    await asyncio.sleep(0)
    assert threads == set()


async def test_context_variables_reach_the_thread():
    variable = contextvars.ContextVar("variable")
    variable.set("here")
    assert await UserFunction(lambda: variable.get()).run((), {}, timeout=600) == "here"


def test_a_hung_thread_does_not_hold_up_the_loop_or_the_process():
    async def main():
        with pytest.raises(TimeoutError):
            await UserFunction(lambda: time.sleep(90)).run((), {}, timeout=0.05)

    start = time.perf_counter()
    asyncio.run(main())
    assert time.perf_counter() - start < 60


async def test_clean_up_outlives_the_one_who_asked():
    cleanup, ended = Cleanup(), []

    async def work():
        await asyncio.sleep(0.05)
        ended.append(True)

    task = asyncio.create_task(cleanup.run(work()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await cleanup.close()
    assert ended == [True]
