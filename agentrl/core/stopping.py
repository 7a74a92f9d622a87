"""Ctrl-C and SIGTERM while a run takes steps.

Invariants: the first request lets a run save what it has learned; the second ends it at once. Signals that come at
almost the same time are one request: `timeout` and job managers send one to the process and one to its group. What
samples is cancelled by the first one, for its weights are those of the step before; an update, which changes them, is
finished.
"""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self, TypeVar

T = TypeVar("T")

STOPPING = "Stopping. What is learned is saved first; a second Ctrl-C ends the run at once, and loses that."
SIGNALS = (signal.SIGINT, signal.SIGTERM)
TICK = 0.2
"""Seconds after which a wait looks for an interrupt again."""
TOGETHER = 0.5
"""Seconds between signals that are one request."""


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop. The message says what is saved, what is lost, and how to resume."""


class StopRequest:
    """Whether a run was asked to stop by SIGINT or SIGTERM."""

    def __init__(self) -> None:
        self.requested = False
        self._since = 0.0
        self._on_first: Callable[[], object] = lambda: None
        self._cancel: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    @contextmanager
    def catching(self, on_first: Callable[[], object] = lambda: None) -> Iterator[Self]:
        """Within the body the signals ask for a stop; `on_first` is called, in its own thread, at the first one.
        Outside of the main thread it does nothing."""
        self._on_first = on_first
        self._install()
        try:
            yield self
        finally:
            self._restore()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the body, inside of `catching`, the signals do what they did before."""
        self._restore()
        try:
            yield
        finally:
            self._install()

    def check(self) -> None:
        """Raises Interrupted where a stop was asked for."""
        if self.requested:
            raise Interrupted

    @contextmanager
    def cancelling(self) -> Iterator[None]:
        """A stop cancels the present task while the body runs. Raises Interrupted where one was asked for."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            self.check()
            yield
        except asyncio.CancelledError:
            self.check()
            raise
        finally:
            self._cancel = None

    def _install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and time.monotonic() - self._since < TOGETHER:
            return
        if self.requested:
            raise KeyboardInterrupt
        self.requested, self._since = True, time.monotonic()
        # The signal may have interrupted code that holds the locks of logging or stdout.
        threading.Thread(target=self._on_first, daemon=True).start()
        if self._cancel is not None:
            self._cancel()


def result_of(future: Future[T], poll: Callable[[], object] = lambda: None) -> T:
    """The future's result; `poll` is called several times a second meanwhile, and may raise.

    A wait without an end misses an interrupt that comes just before it begins.
    """
    while not future.done():
        if wait([future], TICK).not_done:
            poll()
    return future.result()
