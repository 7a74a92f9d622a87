"""The gateway's HTTP server, in the event loop of the rollouts.

Invariant: it runs while it has sessions, or until it is stopped; every trajectory of a run shares it.
"""

import asyncio
import contextvars
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from agentrl.core.errors import InfraError
from agentrl.gateway.app import make_app
from agentrl.gateway.request import Refused
from agentrl.gateway.session import Session
from agentrl_sandbox.open_files import allow_open_files
from agentrl_sandbox.server.protocol import BoundedProtocol

LOCAL = "127.0.0.1"
KEEP_ALIVE = 600
"""Seconds that a connection may be idle: agents wait for their tools between requests."""


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves the signals to the run."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield


class Gateway:
    """Serves sessions by their keys. Belongs to one event loop."""

    guarded = True
    """Whether keys are secret."""

    def __init__(self, model: str = "policy", host: str = LOCAL, port: int = 0) -> None:
        self.model, self.host, self.port = model, host, port
        self.sessions: dict[str, Session] = {}
        self._lock = asyncio.Lock()
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.url = ""
        """Where it is served; empty before its start."""

    def find(self, key: str | None) -> Session:
        """The session with this key. Raises Refused."""
        session = self.sessions.get(key or "")
        if session is not None:
            return session
        trouble = "the request names no rollout" if key is None else "its key is of no rollout that runs"
        raise Refused(f"{trouble}: use the base URL {self.url}/s/KEY/v1, or KEY as the API key", "key")

    def check(self, key: str | None) -> None:
        """Raises Refused for a key without a session."""
        self.find(key)

    @asynccontextmanager
    async def serving(self, key: str, session: Session) -> AsyncIterator[str]:
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
            if self._task is None:
                await self._start()

    async def stop(self) -> None:
        """Stop the server unless it has sessions; safe to call twice."""
        async with self._lock:
            if self._task is None or self._server is None or self.sessions:
                return
            task, self._task = self._task, None
            self._server.should_exit = self._server.force_exit = True
            await task

    async def _start(self) -> None:
        allow_open_files()
        listener = _listening(self.host, self.port)
        host, port = listener.getsockname()[:2]
        self.url = f"http://{LOCAL if host == '0.0.0.0' else host}:{port}"
        config = uvicorn.Config(
            make_app(self),
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            backlog=2048,
        )
        self._server = _Server(config)
        # A context of its own: the one of the first session would follow all requests.
        context = contextvars.Context()
        serve = self._server.serve([listener])
        self._task = asyncio.get_running_loop().create_task(serve, context=context)
        while not self._server.started:
            if self._task.done():
                raise InfraError(f"the gateway does not start: {self._task.exception()}")
            await asyncio.sleep(0.01)


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=2048)
    except OSError as error:
        raise InfraError(
            f"the gateway cannot listen at {host}:{port}: {error.strerror}; choose another port"
        ) from error
