"""Sessions over HTTP, an extension of SandboxFusion's protocol: a Python interpreter that keeps its state.

Invariants: only a client that knows a session's id, which cannot be guessed, can use it; an idle session is closed.
"""

import asyncio
import secrets
from typing import Protocol

from starlette.exceptions import HTTPException

from agentrl_sandbox.job import CommandResult


class Session(Protocol):
    """The part of the executor's sessions that the server uses."""

    over: str

    async def run(self, code: str, *, wall: float | None = None) -> CommandResult:
        """Run a cell."""

    async def close(self) -> None:
        """End it."""


class Sessions:
    """The open sessions."""

    def __init__(self, idle: float) -> None:
        """`idle`: seconds without a cell after which one is closed."""
        self.idle = idle
        self._open: dict[str, Session] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def add(self, session: Session) -> str:
        """Add a session; its id."""
        key = secrets.token_hex(16)
        self._open[key] = session
        self.rest(key)
        return key

    def use(self, key: str) -> Session:
        """The session of that id, which is not closed until `rest`. Raises HTTPException 404."""
        if key not in self._open:
            raise HTTPException(404, "no such session: it was closed, was idle too long, or belongs to another server")
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
        return self._open[key]

    def rest(self, key: str) -> None:
        """Mark its cell as done: the idle time begins."""
        if key not in self._open:
            return
        if (timer := self._timers.get(key)) is not None:
            timer.cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(self.idle, self._expire, key)

    async def close(self, key: str) -> None:
        """End a session, if it is open."""
        timer, session = self._timers.pop(key, None), self._open.pop(key, None)
        if timer is not None:
            timer.cancel()
        if session is not None:
            await session.close()

    def _expire(self, key: str) -> None:
        task = asyncio.ensure_future(self.close(key))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
