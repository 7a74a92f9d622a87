"""Ctrl-C and SIGTERM while a run takes steps.

Invariants: the first request lets a run save what it has learned; the second ends it at once. What samples is cancelled
by the first one, for its weights are those of the step before; an update, which changes them, is finished.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

STOPPING = "Stopping. What is learned is saved first; a second Ctrl-C ends the run at once, and loses that."
SIGNALS = (signal.SIGINT, signal.SIGTERM)
TICK = 0.2
"""Seconds after which a wait looks for an interrupt again."""


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop. The message says what is saved, what is lost, and how to resume."""


class StopRequest:
    """Context manager in whose body SIGINT and SIGTERM ask for a stop. Outside of the main thread it does nothing."""

    def __init__(self, on_first: Callable[[], object] = lambda: None) -> None:
        """`on_first` is called, in a thread of its own, when the first request comes."""
        self.requested = False
        self._on_first = on_first
        self._cancel: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the body of this context manager: signals do in `paused`'s body what they did before."""
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The signals' handler."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        # The signal may have interrupted code that holds the locks of logging or stdout.
        threading.Thread(target=self._on_first, daemon=True).start()
        if self._cancel is not None:
            self._cancel()

    def check(self) -> None:
        """Raises Interrupted where a stop was asked for."""
        if self.requested:
            raise Interrupted

    @contextmanager
    def cancelling(self, cancel: Callable[[], object]) -> Iterator[None]:
        """`cancel` is called when a request comes while the body runs. Raises Interrupted where one has come."""
        self.check()
        self._cancel = cancel
        try:
            yield
        finally:
            self._cancel = None


async def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """`work`, which a stop request of this process cancels; it then raises Interrupted."""
    request = signal.getsignal(signal.SIGINT)
    if not isinstance(request, StopRequest):
        return await work
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    try:
        with request.cancelling(lambda: loop.call_soon_threadsafe(task.cancel)):
            return await task
    except asyncio.CancelledError:
        request.check()
        raise
    except Interrupted:
        task.cancel()
        raise


def result_of(future: Future[T]) -> T:
    """The future's result. A wait without an end misses an interrupt that comes just before it begins."""
    while not future.done():
        wait([future], TICK)
    return future.result()
