"""One interface to a sandbox server or to a pool of this process.

Invariants: nothing starts before the first job; `close` stops everything that was started; code never runs in this
process.
"""

import asyncio
import os
from typing import TYPE_CHECKING

from agentrl_sandbox.job import SESSIONS, Job, Limits, Result

if TYPE_CHECKING:
    from agentrl_sandbox.client import Client, RemoteSession
    from agentrl_sandbox.pool import Pool, Session


QUEUE_TIMEOUT = 300.0
"""Seconds that a job may wait for a slot: jobs come in bursts, and a burst is no failure."""

TOKEN = "AGENTRL_SANDBOX_TOKEN"
"""Environment variable with the server's token."""


class Sandbox:
    """Runs jobs and sessions. Belongs to one event loop."""

    def __init__(
        self,
        url: str | None = None,
        *,
        max_concurrent: int = 64,
        memory_limit_mb: int = 1024,
        sessions: int = SESSIONS,
    ) -> None:
        """`url`: a server's /run_code; None: a pool of this process.

        `max_concurrent`: jobs at once. `memory_limit_mb`: MiB, for `limits`. `sessions`: open at once in the pool.
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
        """Run a job. Raises SandboxError, and UsageError where no isolation works on this host."""
        async with self._slots:
            return await (await self._runner()).run(job, client=client, queue_timeout=QUEUE_TIMEOUT)

    async def session(self, limits: Limits, *, client: str = "") -> "Session | RemoteSession":
        """Open a session. Raises SandboxError, and UsageError if the server is SandboxFusion's, which has none."""
        return await (await self._runner()).session(limits, client=client, queue_timeout=QUEUE_TIMEOUT)

    async def close(self) -> None:
        """Stop everything that was started. A second call does nothing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _runner(self) -> "Client | Pool":
        return await (self._remote(self.url) if self.url else self._embedded())

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
