"""Coroutines from synchronous code, also where an event loop runs already."""

import asyncio
import os
import signal
import threading
from contextlib import closing

import pytest

from agentrl.runtime.loop_runner import LoopRunner


async def here() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    return asyncio.get_running_loop(), threading.current_thread()


async def test_it_works_within_a_running_loop_and_keeps_its_own() -> None:
    with closing(LoopRunner()) as runner:
        first, thread = runner.run(here())
        elsewhere, main = await asyncio.to_thread(runner.run, here())
        assert first is elsewhere
        assert first is not asyncio.get_running_loop()
        assert len({thread, main, threading.current_thread()}) == 3
        with pytest.raises(ZeroDivisionError):
            runner.run(fails())
    assert first.is_closed()
    assert not thread.is_alive()


def test_it_works_without_one_in_the_callers_thread() -> None:
    with closing(LoopRunner()) as runner:
        assert runner.run(here())[1] is threading.current_thread()


async def test_an_interrupt_cancels_the_work() -> None:
    ended: list[str] = []

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(600)
        finally:
            ended.append("cancelled")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with closing(LoopRunner()) as runner, pytest.raises(KeyboardInterrupt):
            runner.run(work())
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == ["cancelled"]


async def fails() -> float:
    return 1 / 0


def test_a_result_is_not_written_as_text():
    class Result:
        def __repr__(self) -> str:
            raise AssertionError("a rollout's text is long")

    async def work() -> Result:
        return Result()

    runner = LoopRunner()
    assert isinstance(runner.run(work()), Result)
    runner.close()
