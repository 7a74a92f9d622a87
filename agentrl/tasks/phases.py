"""The phases of a trajectory with a container, each with its time and its limit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from agentrl.core.clocks import now
from agentrl.core.errors import InfraError
from agentrl.trajectory.trajectory import Span, SpanKind, Trajectory

SHORTEST = 0.001
"""Seconds; a shorter phase is not shown."""
Phase = SpanKind | Literal["run"]
"""`run` is the agent's; its parts have spans of their own."""


class TookTooLong(InfraError):
    """A phase exceeded its limit."""

    def __init__(self, what: str, limit: float) -> None:
        super().__init__(f"{what} took longer than its {limit:g} s")


@asynccontextmanager
async def phase(trajectory: Trajectory, kind: Phase, limit: float | None = None) -> AsyncIterator[None]:
    """Record the seconds of the body, and its name where it fails. Raises TookTooLong after `limit` seconds."""
    about, start, timeout = trajectory.extra["task"], now(), asyncio.timeout(limit)
    about["failed"] = kind
    try:
        async with timeout:
            yield
    except TimeoutError:
        if not timeout.expired():  # a time limit of the body's own
            raise
        raise TookTooLong("it", limit or 0.0) from None
    else:
        del about["failed"]
    finally:
        end = now()
        about["seconds"][kind] = round(end - start, 3)
        if kind != "run" and end - start > SHORTEST:
            trajectory.spans.append(Span(kind, start, end))
