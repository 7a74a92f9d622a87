"""The pool's end of a session: it sends one cell at a time.

Invariant: once `over` holds a reason, no process of the session runs.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_sandbox import plan as plans
from agentrl_sandbox import wire
from agentrl_sandbox.job import CommandResult, Limits
from agentrl_sandbox.job_connection import JobConnection

if TYPE_CHECKING:
    from agentrl_sandbox.pool import Pool

GRACE = 20.0
"""Seconds beyond twice the time limit after which a job supervisor counts as hung."""
CELL_RUNNER = (Path(__file__).parent / "zygote" / "cell_runner.py").read_text(encoding="utf-8") + "\nmain(3, 4)\n"
"""Source of a session's interpreter, for python -c."""


class Session:
    """A Python interpreter with state, made by Pool.session. It holds a slot only while it starts or runs a cell."""

    def __init__(self, pool: "Pool", limits: Limits, client: str) -> None:
        self.pool, self.limits, self.client = pool, limits, client
        self.connection: JobConnection | None = None
        """None before the first cell, which starts the interpreter."""
        self.over = ""
        self.turn = asyncio.Lock()

    async def run(self, code: str, *, wall: float | None = None) -> CommandResult:
        """Run a cell for at most `wall` seconds (None: the session's limit); print its last expression's value.

        Return code 1: it raised, and the traceback is on stderr. After a limit, or an exit of the interpreter, the
        state is lost, and further cells get the status Error. Raises SandboxError if the session was lost.
        """
        async with self.turn:
            if self.over:
                return CommandResult("Error", 0.0, None, b"", f"the session has ended: {self.over}".encode())
            seconds = self.limits.wall if wall is None else wall
            await self.pool.allocator.acquire(self.client, None)
            try:
                return await self._cell(code, seconds)
            finally:
                self.pool.allocator.release()

    async def _cell(self, code: str, wall: float) -> CommandResult:
        ended = False
        try:
            if self.connection is None:
                self.connection = await self.pool.open_session(self.limits)
            await self.connection.send(wire.pack({"wall": wall}, [code.encode(errors="surrogateescape")]))
            header, (stdout, stderr) = await self.connection.receive(2 * wall + GRACE)
            ended = True
        finally:
            if not ended:  # cancelled: no caller waits for the cell
                self._end("a cell was cut off")
        answer = plans.result(header, stdout, stderr)
        if header["over"]:
            self._end(f"its last cell hit the limit of {header['hit']}" if header["hit"] else "its interpreter exited")
        return answer

    def _end(self, why: str) -> None:
        if not self.over:
            self.over = why
            if self.connection is not None:
                self.connection.close()
            self.pool.sessions.release()

    async def close(self) -> None:
        """End the session and all its processes."""
        self._end("it was closed")
