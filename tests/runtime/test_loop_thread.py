"""Work continues in the loop's thread; waits notice stops, interrupts and errors."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from agentrl.core.loop_thread import LoopFuture, LoopThread
from agentrl.core.stopping import Interrupted


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with closing(LoopThread()) as thread:
        yield thread


async def value(of: int) -> int:
    await asyncio.sleep(0)
    return of


async def forever() -> None:
    await asyncio.Event().wait()


async def raises(error: BaseException) -> None:
    raise error


def test_started_work_goes_on_without_a_wait(loop: LoopThread) -> None:
    ended = threading.Event()

    async def work() -> str:
        ended.set()
        return threading.current_thread().name

    started = loop.start(work())
    assert ended.wait(10)
    assert started.result() == "agentrl-loop"
    assert started.done()
    assert loop.run(value(3)) == 3


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError("theirs"), Interrupted("stop"), SystemExit(3)])
def test_errors_reach_the_waiting_thread_and_the_loop_goes_on(loop: LoopThread, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        loop.run(raises(error))
    assert caught.value is error
    assert loop.run(value(1)) == 1


def test_a_task_that_ends_the_program_ends_the_wait(loop: LoopThread) -> None:
    """`sys.exit` in a user's function, in a task of its own, stops an event loop."""

    async def work() -> None:
        task = asyncio.create_task(raises(SystemExit(3)))
        await asyncio.wait([task])
        task.exception()  # else asyncio logs it when the task is collected, which may be within another test

    with pytest.raises(SystemExit):
        loop.start(work()).result()
    assert loop.run(value(1)) == 1


def test_a_wait_polls(loop: LoopThread) -> None:
    polled: list[int] = []

    def poll() -> None:
        polled.append(1)
        if len(polled) == 2:
            raise Interrupted

    started = loop.start(forever())
    with pytest.raises(Interrupted):
        started.result(poll)
    assert not started.done()  # only the wait has ended


def test_an_interrupted_run_cancels_its_work(loop: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    began, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        began.set()
        try:
            await forever()
        finally:
            cancelled.set()

    def interrupt(started: object, poll: object = None) -> None:
        assert began.wait(10)
        raise KeyboardInterrupt

    monkeypatch.setattr(LoopFuture, "result", interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    monkeypatch.undo()
    assert cancelled.wait(10)
    assert loop.run(value(2)) == 2


async def test_it_works_within_a_running_loop_and_keeps_its_own() -> None:
    async def here() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    with closing(LoopThread()) as loop:
        first = loop.run(here())
        assert first is await asyncio.to_thread(loop.run, here())
        assert first is not asyncio.get_running_loop()
    assert first.is_closed()


def test_a_signal_ends_the_wait_and_cancels_the_work() -> None:
    ended: list[str] = []

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await forever()
        finally:
            ended.append("cancelled")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with closing(LoopThread()) as loop, pytest.raises(KeyboardInterrupt):
            loop.run(work())
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == ["cancelled"]


def test_a_result_is_not_written_as_text(loop: LoopThread) -> None:
    class Result:
        def __repr__(self) -> str:
            raise AssertionError("a rollout's text is long")

    async def work() -> Result:
        return Result()

    assert isinstance(loop.run(work()), Result)


def test_closing_cancels_everything_and_refuses_more() -> None:
    loop = LoopThread()
    started = loop.start(forever())
    loop.close()
    loop.close()
    assert started.done()
    work = value(1)
    with pytest.raises(RuntimeError, match="closed"):
        loop.start(work)
    work.close()
