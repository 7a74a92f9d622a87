"""The sessions with one MCP server.

Invariant: a trajectory that has its own session has it from its first use until the trajectory's tools are released.
"""

import asyncio
from contextlib import suppress
from typing import Any

from agentrl.core.loop_thread import LoopThread
from agentrl.tools.mcp.connection import Connection
from agentrl.tools.mcp.spec import ServerSpec


class SessionPool:
    """Sessions that all trajectories share, or one for each trajectory that uses the server."""

    def __init__(self, spec: ServerSpec, loop: LoopThread, sessions: int) -> None:
        """`sessions`: number of shared sessions; 0: one for each trajectory."""
        self.spec = spec
        self.loop = loop
        self.sessions = sessions
        self._shared: list[Connection] = []
        self._own: dict[int, Connection] = {}

    async def tools(self, owner: Any = None) -> list[Any]:
        """The server's tools, asked over the session of the trajectory `owner`, or a shared one; starts the server.
        Raises InfraError."""
        return await asyncio.wrap_future(self.loop.submit(self._connection(owner).tools()))

    async def call(self, tool: str, arguments: dict[str, Any], owner: Any) -> Any:
        """Call over a session; `owner` is the trajectory's. Raises MCPError, InfraError."""
        connection = self._connection(owner)
        connection.busy += 1
        try:
            return await asyncio.wrap_future(self.loop.submit(connection.call(tool, arguments)))
        finally:
            connection.busy -= 1

    async def leave(self, owner: Any) -> None:
        """Close the trajectory's session, if it has one."""
        if (connection := self._own.pop(id(owner), None)) is not None:
            await asyncio.wrap_future(self.loop.submit(connection.close()))

    def close(self) -> None:
        """End all sessions and the processes of servers; wait for them."""
        for closing in [self.loop.submit(connection.close()) for connection in (*self._shared, *self._own.values())]:
            with suppress(Exception):
                closing.result()

    def _connection(self, owner: Any) -> Connection:
        """The trajectory's session, or a shared one: a new one while there are fewer than wanted and all are busy, else
        the least busy."""
        if not self.sessions and owner is not None:
            return self._own.setdefault(id(owner), Connection(self.spec))
        idle = any(not connection.busy for connection in self._shared)
        if not idle and len(self._shared) < max(1, self.sessions):
            self._shared.append(Connection(self.spec))
        return min(self._shared, key=lambda connection: connection.busy)
