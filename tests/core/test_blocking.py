"""Async functions that block the event loop are named, and nothing else is."""

import asyncio
import logging
import time

import pytest

from agentrl.core.blocking import LoopWatch
from agentrl.core.user_code import UserFunction

MAX_BLOCKED_SECONDS = 0.08


class Search:
    """A tool as people write it."""

    async def execute(self, seconds: float) -> str:
        time.sleep(seconds)  # noqa: ASYNC251
        return "found"

    async def gather(self, seconds: float) -> None:
        await asyncio.gather(self.fetch(seconds))

    async def fetch(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251

    async def patient(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def plain(self, seconds: float) -> None:
        time.sleep(seconds)

    async def imports(self, seconds: float) -> None:
        import blocking_first_import  # noqa: F401


async def lines(fn, *args, timeout=None, times=1, **options) -> list[str]:
    """What the watch reports of a call."""
    said: list[str] = []
    watch = LoopWatch(MAX_BLOCKED_SECONDS, report=said.append)
    with watch.watching():
        for _ in range(times):
            await UserFunction(fn, **options).run(args, {}, timeout=timeout)
            await asyncio.sleep(0)
    return said


@pytest.mark.prevents("an `async` tool that blocks (`requests.get`) silently stops every trajectory and every timeout")
async def test_the_culprit_is_named_with_its_line_and_the_fix() -> None:
    (line,) = await lines(
        Search().execute, 4 * MAX_BLOCKED_SECONDS, owner="tool 'search'", fix="set config.in_thread: true"
    )
    assert line.startswith("tool 'search': Search.execute blocks the event loop at test_blocking.py:")
    assert "(time.sleep(seconds)" in line
    assert "await asyncio.to_thread(...)" in line
    assert line.endswith("or set config.in_thread: true")
    assert "its own of" not in line


async def test_once_for_each_culprit() -> None:
    assert len(await lines(Search().execute, 3 * MAX_BLOCKED_SECONDS, times=3)) == 1


async def test_one_that_outlasts_its_timeout_is_said_so() -> None:
    said = await lines(Search().execute, 6 * MAX_BLOCKED_SECONDS, timeout=2 * MAX_BLOCKED_SECONDS)
    assert f"no timeout worked, including its own of {2 * MAX_BLOCKED_SECONDS:g} s" in said[-1]


async def test_many_short_calls_that_hold_it_up_together() -> None:
    watch = LoopWatch(MAX_BLOCKED_SECONDS, report=lambda _: None)
    with watch.watching():
        await asyncio.gather(*(UserFunction(Search().execute).run((0.02,), {}, timeout=60) for _ in range(40)))
    assert list(watch.found) == ["Search.execute"]


async def test_what_a_task_of_its_own_does_is_named_by_the_code() -> None:
    (line,) = await lines(Search().gather, 4 * MAX_BLOCKED_SECONDS)
    assert line.startswith("Search.fetch blocks the event loop")


@pytest.mark.parametrize("fn", [Search().patient, Search().plain])
async def test_what_waits_or_runs_in_a_thread_is_fine(fn) -> None:
    assert await lines(fn, 4 * MAX_BLOCKED_SECONDS) == []


async def test_in_a_thread_the_timeout_holds() -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        await lines(Search().execute, 30, timeout=MAX_BLOCKED_SECONDS, in_thread=True)
    assert time.monotonic() - start < 15
    assert await lines(Search().execute, 4 * MAX_BLOCKED_SECONDS, in_thread=True) == []


async def test_in_a_thread_async_code_works_and_ends_after_its_timeout() -> None:
    ended = []

    async def slow() -> str:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(True)

    async def quick() -> str:
        return await asyncio.to_thread(lambda: "done")

    assert await UserFunction(quick, in_thread=True).run((), {}, timeout=60) == "done"
    with pytest.raises(TimeoutError, match="no answer within 0.05 s"):
        await UserFunction(slow, in_thread=True).run((), {}, timeout=0.05)
    for _ in range(600):
        if ended:
            break
        await asyncio.sleep(0.05)
    assert ended == [True]


async def test_a_first_import_is_not_blamed(tmp_path, monkeypatch) -> None:
    (tmp_path / "blocking_first_import.py").write_text(f"import time\ntime.sleep({4 * MAX_BLOCKED_SECONDS})\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert await lines(Search().imports, 0) == []


async def test_a_loop_that_agentrl_holds_up_is_measured_and_blames_nobody() -> None:
    from agentrl.core.json_text import cleaned

    deep: object = [[[[[[1] * 8] * 8] * 8] * 8] * 8] * 16
    said: list[str] = []
    results = []  # what frees them is this function
    with LoopWatch(2 * MAX_BLOCKED_SECONDS, report=said.append).watching() as pulse:
        await asyncio.sleep(0)
        over = time.monotonic() + 4 * MAX_BLOCKED_SECONDS
        while time.monotonic() < over:
            results.append(cleaned(deep))
        await asyncio.sleep(0.05)
    assert said == []
    assert pulse.longest > 2 * MAX_BLOCKED_SECONDS


async def test_a_run_warns_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), LoopWatch(MAX_BLOCKED_SECONDS).watching():
        await UserFunction(Search().execute).run((4 * MAX_BLOCKED_SECONDS,), {}, timeout=60)
    assert "Search.execute blocks the event loop" in caplog.text
