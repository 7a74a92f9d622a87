"""The limit of a container's disk, by measuring: only few file systems have one that an engine can set.

A container that has written more than its limit loses its processes, and keeps its files. Until the next measurement it
may write more.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from agentrl.containers.docker.engine import Engine
from agentrl.core.errors import InfraError

PAUSE = 5.0
SHARE = 0.05
"""Of the time, at most, that is spent on measuring: it walks through all files that the container has written."""


async def watch_disk(engine: Engine, name: str, most_mb: int, end_all: Callable[[], Awaitable[None]]) -> None:
    """Measure for as long as the container lives; `end_all` ends its processes."""
    pause = PAUSE
    while True:
        await asyncio.sleep(pause)
        begin = time.monotonic()
        with suppress(InfraError):
            if await engine.call(_written, engine, name) > most_mb << 20:
                await end_all()
        pause = max(PAUSE, (time.monotonic() - begin) / SHARE)


def _written(engine: Engine, name: str) -> int:
    """Bytes."""
    found = engine.client.api.containers(size=True, filters={"name": name})
    return int(found[0].get("SizeRw") or 0) if found else 0
