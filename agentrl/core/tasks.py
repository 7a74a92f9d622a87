"""Tasks of an event loop that run in the background."""

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any


class Tasks(set["asyncio.Task[Any]"]):
    """Tasks that run; each leaves when it ends."""

    def start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Begin `work` on the running loop."""
        task = asyncio.get_running_loop().create_task(work)
        self.add(task)
        task.add_done_callback(self.discard)
        return task


async def cancelled(tasks: "Iterable[asyncio.Future[Any]]") -> None:
    """Cancel tasks, and wait until they have ended."""
    running = [*tasks]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def ends_first(work: Awaitable[Any], other: Awaitable[Any]) -> bool:
    """Whether `work` ends before `other` does. The one that has not ended is cancelled."""
    either = asyncio.ensure_future(work), asyncio.ensure_future(other)
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return either[0].done()
    finally:
        await cancelled(either)
