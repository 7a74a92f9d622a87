"""The clock of durations, time limits that count no wait for us, and the moments at which queued work begins.

Invariants:
- no change of the system's time changes a duration;
- a `Limit` does not count the seconds in which work within it waits for an engine that is paused, updated, asleep or
  started again, or in one of our queues. It counts all others, also those of other work during a pause.

A limit covers the tasks that are started within it. Belongs to one event loop.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

_OFFSET = time.time() - time.monotonic()

_LIMITS: ContextVar[tuple["Limit", ...]] = ContextVar("limits", default=())
_listening: ContextVar[list[float] | None] = ContextVar("_listening", default=None)


def now() -> float:
    """Seconds since the epoch, by a clock that is never set during a process."""
    return _OFFSET + time.monotonic()


class Limit:
    """Calls `end` once, after so many counted seconds; with None never."""

    def __init__(self, seconds: float | None, end: Callable[[], object]) -> None:
        self._left, self._waits = seconds, 0
        self._end: Callable[[], object] = end
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.wait(0)

    def wait(self, change: int) -> None:
        """1: a wait for us begins, -1: one ends. Seconds count while there is none."""
        if self._timer is not None:
            self._left = self._timer.when() - self._loop.time()
            self._timer.cancel()
            self._timer = None
        self._waits += change
        if self._left is not None and not self._waits:
            self._timer = self._loop.call_later(self._left, self._over)

    def close(self) -> None:
        """The work is over."""
        if self._timer is not None:
            self._timer.cancel()
        self._left = self._timer = None
        self._end = bool  # contexts keep limits: one that is over must keep nothing alive

    def _over(self) -> None:
        end = self._end
        self.close()
        end()


@contextlib.contextmanager
def limited(seconds: float | None, end: Callable[[], object]) -> Iterator[None]:
    """Within the body a Limit counts."""
    limit = Limit(seconds, end)
    token = _LIMITS.set((*_LIMITS.get(), limit))
    try:
        yield
    finally:
        _LIMITS.reset(token)
        limit.close()


@contextlib.asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
    """An `asyncio.timeout` that counts by a Limit."""
    async with asyncio.timeout(None) as timeout:
        with limited(seconds, lambda: timeout.reschedule(0)):
            yield timeout


@contextlib.asynccontextmanager
async def queued(slots: contextlib.AbstractAsyncContextManager[Any]) -> AsyncIterator[None]:
    """A slot for the body; the wait for it counts towards no limit around it."""
    async with contextlib.AsyncExitStack() as stack:
        with uncounted():
            await stack.enter_async_context(slots)
        yield


class Pauses:
    """The pauses of an engine."""

    def __init__(self, *, paused: bool = False) -> None:
        self._paused = paused
        self._requests: dict[object, tuple[Limit, ...]] = {}

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """A pause within the body counts towards no limit around it."""
        key, limits = object(), _LIMITS.get()
        self._requests[key] = limits
        _wait(limits, +self._paused)
        try:
            yield
        finally:
            del self._requests[key]
            _wait(limits, -self._paused)

    def set(self, *, paused: bool) -> None:
        """The engine stops or goes on; it may have done so before."""
        for limits in self._requests.values():
            _wait(limits, paused - self._paused)
        self._paused = paused


def uncounted() -> contextlib.AbstractContextManager[None]:
    """The body's seconds count towards no limit around it."""
    return Pauses(paused=True).request()


def _wait(limits: tuple[Limit, ...], change: int) -> None:
    for limit in limits if change else ():
        limit.wait(change)


@contextlib.contextmanager
def listening() -> Iterator[list[float]]:
    """Yields a list that gets the start time (seconds since the epoch) of each queued work that begins in the body.

    That of tasks started in the body included. The time of a queue is then not counted as time of work; work without a
    call of `began` started at once.
    """
    starts: list[float] = []
    token = _listening.set(starts)
    try:
        yield starts
    finally:
        _listening.reset(token)


def began(at: float | None = None) -> None:
    """The owner of a queue (the slots of an engine or a tool) starts work, now or at the given time."""
    starts = _listening.get()
    if starts is not None:
        starts.append(now() if at is None else at)
