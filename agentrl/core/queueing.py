"""When work begins that had to wait for its turn.

Whoever holds a queue (an engine's seats, a tool's places) says `began` when a turn comes; whoever times the work
listens. Work of which nothing is said began at once. Tasks that the listener starts are heard as well.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_listening: ContextVar[list[float] | None] = ContextVar("_listening", default=None)


@contextmanager
def listening() -> Iterator[list[float]]:
    """The list gets a time, in seconds since the epoch, for each beginning while the body runs."""
    heard: list[float] = []
    token = _listening.set(heard)
    try:
        yield heard
    finally:
        _listening.reset(token)


def began(at: float | None = None) -> None:
    """A turn came, now or at the given time."""
    heard = _listening.get()
    if heard is not None:
        heard.append(time.time() if at is None else at)
