"""The event loop of a run in a separate thread: conversations may continue while the policy trains, and the caller may
have an event loop of its own, as in a notebook.

Invariants:
- all coroutines given to it run on one event loop, in a separate thread; the thread that gives them only waits;
- a wait notices within a fraction of a second that a user's function stopped the loop, and raises the error;
- an interrupt of the training thread cancels the work that it waits for, and nothing else.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from agentrl.core.stopping import TICK, result_of
from agentrl.core.tasks import cancelled

T = TypeVar("T")


class LoopThread:
    """Runs coroutines on an event loop in a separate thread; it also starts work without waiting."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stopped: BaseException | None = None
        self._over = False
        self._thread = threading.Thread(target=self._run, name="agentrl-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Raises what it raises; KeyboardInterrupt cancels it first."""
        self._check()
        started = LoopFuture(asyncio.run_coroutine_threadsafe(_outcome(work), self._loop), self._check)
        try:
            return started.result()
        except BaseException:
            started.cancel()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begin `work`, for callers that wait on an event loop of their own."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def start(self, work: Coroutine[Any, Any, T]) -> "LoopFuture[T]":
        """Begin `work`; other work continues."""
        self._check()
        return LoopFuture(asyncio.run_coroutine_threadsafe(_outcome(work), self._loop), self._check)

    def close(self) -> None:
        """Cancel what still runs and end the thread; safe to call twice."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            while self._thread.is_alive():  # a join without an end misses an interrupt that comes just before it
                self._thread.join(TICK)
        if not self._loop.is_closed():
            self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._over:
            try:
                self._loop.run_forever()
            except BaseException as error:  # SystemExit of a user's function stops an event loop
                self._stopped = error

    async def _end(self) -> None:
        await cancelled(asyncio.all_tasks() - {asyncio.current_task()})
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()
        self._over = True
        self._loop.stop()

    def _check(self) -> None:
        """Raises, once, an error that stopped the event loop; then the loop continues, so that all can be closed."""
        stopped, self._stopped = self._stopped, None
        if stopped is not None:
            raise stopped
        if self._over:
            raise RuntimeError("the event loop was closed")


@dataclass(frozen=True)
class LoopFuture(Generic[T]):
    """The result of work that was started."""

    future: Future[tuple[T | None, BaseException | None]]
    check: Callable[[], None]
    """Raises an error that stopped the event loop."""

    def result(self, poll: Callable[[], object] = lambda: None) -> T:
        """Wait for the result; `poll` is called several times a second, and may raise. Raises what the work raised."""

        def polled() -> None:
            self.check()
            poll()

        value, error = result_of(self.future, polled)
        self.check()
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # without an error there is a value

    def done(self) -> bool:
        """Whether `result` returns or raises at once."""
        return self.future.done()

    def cancel(self) -> None:
        """End the work, if it still runs."""
        self.future.cancel()


async def _outcome(work: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """Value or error; KeyboardInterrupt and SystemExit, raised by a task, would end the event loop."""
    try:
        return await work, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error
