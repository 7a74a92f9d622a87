"""The sessions with one MCP server.

Invariant: a trajectory that has its own session has it from its first call until all of its tools are released.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Any, TypeVar

from agentrl.core.errors import InfraError
from agentrl.core.json_schema import Unchecked, WrongSchema, compiled
from agentrl.core.loop_thread import LoopThread
from agentrl.tools.mcp.connection import Connection
from agentrl.tools.mcp.spec import ServerSpec

T = TypeVar("T")
log = logging.getLogger(__name__)
MAX_COMPLAINT_CHARACTERS = 300
"""Characters of a complaint."""


class SessionPool:
    """Sessions that all trajectories share, or one for each trajectory that calls."""

    def __init__(self, spec: ServerSpec, loop: LoopThread, sessions: int) -> None:
        """`sessions`: number of shared sessions; 0: one for each trajectory."""
        self.spec = spec
        self.loop = loop
        self.sessions = sessions
        self._shared: list[Connection] = []
        self._own: dict[int, Connection] = {}
        self._users: dict[int, set[str]] = {}
        self._promised: dict[str, Any] = {}
        """Schemas of results, by tool; without those that were broken once."""

    def tools(self) -> list[Any]:
        """The server's tools; starts the server. Raises InfraError."""
        found = self.loop.submit(self._first().tools()).result()
        self._promised = {tool.name: tool.output_schema for tool in found if tool.output_schema is not None}
        return found

    async def call(self, tool: str, arguments: dict[str, Any], owner: Any, instance_id: str) -> Any:
        """Call over a session; `owner` is the trajectory's, `instance_id` that of its instance of the tool."""
        connection = self._first() if self.sessions else self._owned(owner, instance_id)
        connection.busy += 1
        try:
            result = await asyncio.wrap_future(self.loop.submit(connection.call(tool, arguments)))
        finally:
            connection.busy -= 1
        self._check(tool, result)
        return result

    def _check(self, tool: str, result: Any) -> None:
        """Warn once where a result is not what the tool promised. Raises InfraError where nothing else is in it."""
        schema = self._promised.get(tool)
        wrong = None if schema is None or result.is_error else _misfit(schema, result.structured_content)
        if wrong is None:
            return
        line = f"MCP server {self.spec.name!r}: {tool} does not return what its output schema says: {wrong}"
        if not result.content:
            raise InfraError(line)
        if self._promised.pop(tool, None) is not None:
            log.warning("%s; its text is used, and further results are not checked", line)

    async def leave(self, instance_id: str) -> None:
        """A tool of a trajectory is released; the last one closes its session."""
        owner = next((owner for owner, users in self._users.items() if instance_id in users), None)
        if owner is None:
            return
        self._users[owner].discard(instance_id)
        if not self._users[owner]:
            del self._users[owner]
            await asyncio.wrap_future(self.loop.submit(self._own.pop(owner).close()))

    def close(self) -> None:
        """End all sessions and the processes of servers; wait for them."""
        for closing in [self.loop.submit(connection.close()) for connection in (*self._shared, *self._own.values())]:
            with suppress(Exception):
                closing.result()

    def _first(self) -> Connection:
        """A shared session: a new one while there are fewer than wanted and all are busy, else the least busy."""
        idle = next((connection for connection in self._shared if not connection.busy), None)
        if idle is not None:
            return idle
        if len(self._shared) < max(1, self.sessions):
            self._shared.append(Connection(self.spec))
            return self._shared[-1]
        return min(self._shared, key=lambda connection: connection.busy)

    def _owned(self, owner: Any, instance_id: str) -> Connection:
        key = id(owner)
        self._users.setdefault(key, set()).add(instance_id)
        return self._own.setdefault(key, Connection(self.spec))


def _misfit(schema: Any, content: Any) -> str | None:
    """Why structured content does not fit; None: it does."""
    if content is None:
        return "there is no structured content"
    try:
        errors = compiled(schema).errors(content)
    except (WrongSchema, Unchecked) as error:
        return f"it cannot be checked: {error}"
    return f"{errors[0].json_path}: {errors[0].message[:MAX_COMPLAINT_CHARACTERS]}" if errors else None
