"""Waits for what another thread or process does."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether it comes true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """The same, while the event loop goes on."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


def skip_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the clock of the running loop jump to the next timer where nothing else is to do, and stand still elsewhere:
    no timeout ends what runs on the loop because the machine is busy."""
    loop: Any = asyncio.get_running_loop()
    select, clock = loop._selector.select, [loop.time()]

    def jump(timeout: float | None) -> list[Any]:
        ready: list[Any] = select(timeout and 0)
        if not ready:
            clock[0] += timeout or 0
        return ready

    monkeypatch.setattr(loop._selector, "select", jump)
    monkeypatch.setattr(loop, "time", lambda: clock[0])
