"""The pool's side of a session: cells go out one at a time, answers come back.

Invariant: once `over` says why, nothing of the session runs any more.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_sandbox import plan as plans
from agentrl_sandbox import wire
from agentrl_sandbox.job import CommandResult, Limits
from agentrl_sandbox.link import Caller

if TYPE_CHECKING:
    from agentrl_sandbox.pool import Pool

GRACE = 20.0
"""Seconds that a reply may be late before its warden counts as hung."""
CELLS = (Path(__file__).parent / "zygote" / "cells.py").read_text(encoding="utf-8") + "\nmain(3, 4)\n"
"""A session's interpreter, as source for python -c."""


class Session:
    """A Python with state, from Pool.session. It takes a place in the pool only while a cell runs, or it starts."""

    def __init__(self, pool: "Pool", limits: Limits, client: str) -> None:
        self.pool, self.limits, self.client = pool, limits, client
        self.caller: Caller | None = None
        """None before the first cell: until then no process is there."""
        self.over = ""
        self.turn = asyncio.Lock()

    async def run(self, code: str, *, wall: float | None = None) -> CommandResult:
        """Run a cell, `wall` seconds at most (None: the session's limit), and show the value of its last expression.

        Return code 1: it raised, and the traceback is on stderr. After a limit, or an exit of the whole interpreter,
        the state is gone: further cells get the status Error. Raises SandboxError when the session was lost.
        """
        async with self.turn:
            if self.over:
                return CommandResult("Error", 0.0, None, b"", f"the session has ended: {self.over}".encode())
            seconds = self.limits.wall if wall is None else wall
            await self.pool.turnstile.enter(self.client, None)
            try:
                return await self._cell(code, seconds)
            finally:
                self.pool.turnstile.leave()

    async def _cell(self, code: str, wall: float) -> CommandResult:
        ended = False
        try:
            if self.caller is None:
                self.caller = await self.pool.open_session(self.limits)
            await self.caller.send(wire.pack({"wall": wall}, [code.encode(errors="surrogateescape")]))
            header, (stdout, stderr) = await self.caller.receive(2 * wall + GRACE)
            ended = True
        finally:
            if not ended:  # a cell that nobody waits for any more
                self._end("a cell was cut off")
        answer = plans.result(header, stdout, stderr)
        if header["over"]:
            self._end(f"its last cell hit the limit of {header['hit']}" if header["hit"] else "its interpreter exited")
        return answer

    def _end(self, why: str) -> None:
        if not self.over:
            self.over = why
            if self.caller is not None:
                self.caller.close()
            self.pool.sessions.leave()

    async def close(self) -> None:
        """End it, and all its processes."""
        self._end("it was closed")
