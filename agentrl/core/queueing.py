"""Reports when queued work starts, so that queueing time is not counted as run time.

The owner of a queue (the slots of an engine or a tool) calls `began`; the code that measures the work uses `listening`.
Work without a call of `began` started at once. Tasks started within `listening` are included.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from agentrl.core.clocks import now

_listening: ContextVar[list[float] | None] = ContextVar("_listening", default=None)


@contextmanager
def listening() -> Iterator[list[float]]:
    """Yields a list that gets the start time (seconds since the epoch) of each work that begins in the body."""
    heard: list[float] = []
    token = _listening.set(heard)
    try:
        yield heard
    finally:
        _listening.reset(token)


def began(at: float | None = None) -> None:
    """Queued work starts, now or at the given time."""
    heard = _listening.get()
    if heard is not None:
        heard.append(now() if at is None else at)
