"""The sandbox that a run's rewards and tools share: a server elsewhere, or a pool of this process's own.

Invariants: nothing starts before the first job; whatever was started is stopped by `close`; code never runs in this
process.
"""

import asyncio
import os
from typing import TYPE_CHECKING

from agentrl_sandbox.job import SESSIONS, Job, Limits, Result

if TYPE_CHECKING:
    from agentrl_sandbox.client import Client, RemoteSession
    from agentrl_sandbox.pool import Pool, Session


PATIENCE = 300.0
"""Seconds that a job may wait for its turn: a rollout's jobs come in bursts, and a burst is no failure."""

TOKEN = "AGENTRL_SANDBOX_TOKEN"
"""Environment variable with the token that a server wants."""


class Sandbox:
    """Belongs to one event loop."""

    def __init__(
        self,
        url: str | None = None,
        *,
        max_concurrent: int = 64,
        memory_limit_mb: int = 1024,
        sessions: int = SESSIONS,
    ) -> None:
        """`url` of a server's /run_code; none: an embedded pool, with so many `sessions` open at once.

        At most `max_concurrent` jobs at once.
        """
        self.url, self.sessions = url, sessions
        self.memory_limit_mb = memory_limit_mb
        self._slots = asyncio.Semaphore(max_concurrent)
        self._starting = asyncio.Lock()
        self._pool: Pool | None = None
        self._client: Client | None = None

    def limits(self, wall: float) -> Limits:
        """Limits of `wall` seconds and the sandbox's memory."""
        return Limits(wall=wall, memory_mb=self.memory_limit_mb)

    async def run(self, job: Job, *, client: str = "") -> Result:
        """Run a job, after others if need be. Raises SandboxError, and UsageError when nothing here isolates."""
        async with self._slots:
            place: Client | Pool = await (self._remote(self.url) if self.url else self._embedded())
            return await place.run(job, client=client, patience=PATIENCE)

    async def session(self, limits: Limits, *, client: str = "") -> "Session | RemoteSession":
        """A Python with state. Raises SandboxError, and UsageError where the server is SandboxFusion's: it has none."""
        place: Client | Pool = await (self._remote(self.url) if self.url else self._embedded())
        return await place.session(limits, client=client, patience=PATIENCE)

    async def close(self) -> None:
        """Stop what was started; safe to call twice."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _embedded(self) -> "Pool":
        from agentrl_sandbox.pool import Pool

        async with self._starting:
            if self._pool is None:
                pool = Pool(sessions=self.sessions)
                await pool.start()
                self._pool = pool
        return self._pool

    async def _remote(self, url: str) -> "Client":
        from agentrl_sandbox.client import Client

        async with self._starting:
            if self._client is None:
                client = Client(url, token=os.environ.get(TOKEN))
                await client.start()
                self._client = client
        return self._client
