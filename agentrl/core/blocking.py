"""Finds async user functions that block the event loop.

While one blocks (`requests.get`, `time.sleep`), all other trajectories wait and no timeout works: timeouts are timers
of the same loop.

Invariants:
- only user code is reported, never agentrl itself or a busy machine;
- each function is reported once, and once more if it exceeds its own timeout;
- functions are not timed: a timer runs on the loop, and a thread checks that it does not stop.
"""

import asyncio
import importlib._bootstrap
import linecache
import logging
import sys
import sysconfig
import threading
import time
from asyncio import base_events
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_BLOCKED_SECONDS = 0.5
"""A loop blocked for this many seconds gets a warning."""
TEST_MAX_BLOCKED_SECONDS = 0.25
"""The limit in tests of single functions (`agentrl tools test`, `agentrl doctor`)."""
FIXES = "wrap that call in `await asyncio.to_thread(...)`, or take its async form (httpx.AsyncClient, asyncio.sleep)"

PACKAGE = Path(__file__).resolve().parents[1]
LIBRARIES = tuple({f"{path}/" for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))})
TURN = base_events.BaseEventLoop._run_once.__code__  # type: ignore[attr-defined]
IMPORT = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Call:
    """A call of an async function that the user wrote."""

    name: str
    """For messages: "tool 'search': Search.execute"."""
    timeout: float | None = None
    fix: str = ""
    """Another fix besides FIXES."""


async def attributed(work: Awaitable[T], call: Call) -> T:
    """Await `work`. Where it blocks the loop, this frame in the stack says which call it belongs to."""
    return await work


@dataclass
class Blocked:
    """A blocking function, and its longest blocking."""

    name: str
    place: str
    """"search.py:14 (requests.get(url))"."""
    timeout: float | None
    fix: str
    seconds: float = 0.0
    late: bool = False
    """Whether the call exceeded its timeout."""

    def __str__(self) -> str:
        return f"{self.trouble}; {self.remedy}"

    @property
    def trouble(self) -> str:
        """The problem in a line."""
        late = f", including its own of {self.timeout:g} s" if self.late else ""
        return (
            f"{self.name} blocks the event loop at {self.place}: for {self.seconds:.1f} s no other trajectory ran "
            f"and no timeout worked{late}"
        )

    @property
    def remedy(self) -> str:
        """How to fix it."""
        return f"{FIXES}, or {self.fix}" if self.fix else FIXES


@dataclass
class LoopWatch:
    """Watches event loops for one run and collects blocking functions."""

    max_blocked: float = MAX_BLOCKED_SECONDS
    report: Callable[[str], None] = log.warning
    found: dict[str, Blocked] = field(default_factory=dict)

    @contextmanager
    def watching(self) -> Iterator["Heartbeat"]:
        """Watch the running loop within the body."""
        heartbeat, over = Heartbeat(asyncio.get_running_loop(), self.max_blocked / 4), threading.Event()
        threading.Thread(target=self._watch, args=(heartbeat, over), name="loop watch", daemon=True).start()
        try:
            yield heartbeat
        finally:
            over.set()
            heartbeat.stop()

    def _watch(self, heartbeat: "Heartbeat", over: threading.Event) -> None:
        before: Blocked | None = None
        while not over.wait(heartbeat.every):
            lag = time.monotonic() - heartbeat.at
            if lag < self.max_blocked / 2:
                before = None
                continue
            culprit = _culprit(sys._current_frames().get(heartbeat.thread))
            # Seen twice: many short calls in a row count, and one that a busy machine stopped by chance does not.
            if culprit is not None and before is not None and culprit.name == before.name and lag >= self.max_blocked:
                self._report(culprit, lag)
            before = culprit

    def _report(self, culprit: Blocked, lag: float) -> None:
        known = self.found.setdefault(culprit.name, culprit)
        known.seconds = max(known.seconds, lag)
        late = culprit.timeout is not None and lag > culprit.timeout
        if known is culprit or (late and not known.late):
            known.late |= late
            self.report(str(known))


class Heartbeat:
    """A timer on the loop that shows whether the loop runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, every: float) -> None:
        self.every = every
        self.longest = 0.0
        """Seconds that the loop was late at most."""
        self.at = time.monotonic()
        self.thread = threading.get_ident()
        self._loop = loop
        self._timer = loop.call_later(every, self._beat)

    def stop(self) -> None:
        """End the timer."""
        self._measure()
        self._timer.cancel()

    def _beat(self) -> None:
        self._measure()
        self.at, self.thread = time.monotonic(), threading.get_ident()
        self._timer = self._loop.call_later(self.every, self._beat)

    def _measure(self) -> None:
        self.longest = max(self.longest, time.monotonic() - self.at - self.every)


def _culprit(frame: FrameType | None) -> Blocked | None:
    """The user's code that the loop's thread is in; None where it is agentrl's, or only a first import."""
    if frame is None:
        return None
    stack = list(takewhile(lambda frame: frame.f_code is not TURN, (outer for outer, _ in walk_stack(frame))))
    if any(frame.f_code is IMPORT for frame in stack):
        return None
    at = next((i for i, frame in enumerate(stack) if not frame.f_code.co_filename.startswith((*LIBRARIES, "<"))), None)
    if at is None:
        return None
    call = next((frame.f_locals["call"] for frame in stack if frame.f_code is attributed.__code__), None)
    if stack[at].f_code is attributed.__code__ and at:
        at -= 1  # the function itself is a library's
    elif _is_ours(stack[at]):
        return None
    code = stack[at].f_code
    name = code.co_qualname if call is None else call.name
    place = _place(code.co_filename, stack[at].f_lineno)
    return Blocked(name, place, call and call.timeout, call.fix if call else "")


def _is_ours(frame: FrameType) -> bool:
    """agentrl's own code; the ready-made tools that a wheel keeps inside the package are like a user's."""
    file = Path(frame.f_code.co_filename)
    return file.is_relative_to(PACKAGE) and not file.is_relative_to(PACKAGE / "share")


def _place(file: str, line: int) -> str:
    code = linecache.getline(file, line).strip()
    return f"{Path(file).name}:{line}" + (f" ({code})" if code else "")
