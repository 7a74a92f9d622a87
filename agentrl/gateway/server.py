"""The gateway's HTTP server, in the event loop of the rollouts.

Invariant: it runs while it has sessions, or until it is stopped; every trajectory of a run shares it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agentrl.core.errors import InfraError, UserError
from agentrl.gateway.app import make_app
from agentrl.gateway.request import Body
from agentrl.gateway.session import AgentSession
from agentrl.http.refusals import Refused
from agentrl.http.serving import LOCAL, HttpServer


class Gateway:
    """Serves sessions by their keys, at `url` once it has started. Belongs to one event loop."""

    guarded = True
    """Whether keys are secret."""

    def __init__(self, host: str = LOCAL, port: int = 0) -> None:
        self.host, self.port = host, port
        self.sessions: dict[str, AgentSession] = {}
        self._lock = asyncio.Lock()
        self._server: HttpServer | None = None
        self.url = ""

    def find(self, key: str | None) -> AgentSession:
        """The session with this key. Raises Refused."""
        if (session := self.sessions.get(key or "")) is not None:
            return session
        trouble = "the request names no rollout" if key is None else "its key is of no rollout that runs"
        raise Refused(f"{trouble}: use the base URL {self.url}/s/KEY/v1, or KEY as the API key", "key")

    def check(self, key: str | None) -> None:
        """Raises Refused for a key without a session."""
        self.find(key)

    def posts(self) -> dict[str, Callable[[str, Body], None]]:
        """Functions behind further addresses, from a key and a body; they raise Refused."""
        return {"rewards": lambda key, body: self.find(key).reward(body)}

    @asynccontextmanager
    async def serving(self, key: str, session: AgentSession) -> AsyncIterator[str]:
        """Serve a session within the body; gives the address of its `/v1`."""
        self.sessions[key] = session
        try:
            await self.start()
            yield f"{self.url}/s/{key}"
        finally:
            del self.sessions[key]
            if not self.sessions:
                await self.stop()

    async def start(self) -> None:
        """Start the server unless it runs. Raises InfraError when its port is taken."""
        async with self._lock:
            if self._server is not None:
                return
            try:
                server = HttpServer(make_app(self), self.host, self.port)
            except UserError as error:
                raise InfraError(f"the gateway cannot listen at {self.host}: {error}") from error
            await server.start()
            self.url, self._server = server.url, server

    async def stop(self) -> None:
        """Stop the server unless it has sessions; safe to call twice."""
        async with self._lock:
            if self._server is not None and not self.sessions:
                server, self._server = self._server, None
                await server.stop()
