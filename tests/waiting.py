"""Waits for what another thread or process does."""

import asyncio
import time
from collections.abc import Callable


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
