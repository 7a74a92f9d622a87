"""One server of an engine: its address, its state, its start."""

import asyncio
import time
from collections.abc import Callable

from agentrl.core.errors import InfraError, UserError
from agentrl.engines.servers.backend import KEEP_ALIVE, ServerBackend
from agentrl.engines.servers.process import ServerProcess
from agentrl.http.client import Http, RequestRefused

Progress = Callable[[str], None]
OWN_KEPT = KEEP_ALIVE / 2
"""Seconds that idle connections to a server of the run are kept: else each step would open hundreds."""


class Replica:
    """A server that the run starts (`server`), or one that runs already (None)."""

    def __init__(self, backend: ServerBackend, url: str, server: ServerProcess | None = None) -> None:
        self.backend, self.url, self.server = backend, url, server
        self.http = Http(url) if server is None else Http(url, OWN_KEPT)
        self.serving = False
        """It answered last time, and has the current weights."""
        self.asleep = False
        self.starts = 0

    @property
    def gone(self) -> bool:
        """Whether the run started it and it has ended."""
        return self.server is not None and not self.server.alive

    def launch(self) -> None:
        """Start the server unless it runs; returns at once."""
        if self.server is not None and not self.server.alive:
            self.starts += 1
            self.asleep = False
            self.server.launch()

    async def ready(self, timeout: float, progress: Progress = lambda _: None) -> None:
        """Wait until it answers. Raises StartFailed for a server of the run, InfraError for another, and UserError
        for a server of another kind or version."""
        start = time.monotonic()
        while not await self.answers():
            waited = time.monotonic() - start
            if self.server is not None and (self.gone or self.server.stuck or waited > timeout):
                raise self.server.failure(self.backend.name, self.backend.hints)
            if waited > timeout:
                raise InfraError(f"{self.url} is no {self.backend.name} server that answers; rollout.base_url names it")
            lines = self.server.tail(1) if self.server is not None else []
            progress(f"{self.backend.name}: {waited:.0f} s, {lines[0][:100] if lines else 'waiting for ' + self.url}")
            await asyncio.sleep(0.25)
        try:
            await self.backend.greet(self.http)
        except RequestRefused as error:
            raise UserError(f"{self.url} is no {self.backend.name} server that agentrl supports: {error}") from error

    async def close(self) -> None:
        """Stop the server if the run started it, and close the connections."""
        self.serving = False
        await self.http.close()
        if self.server is not None:
            await self.server.stop()

    async def answers(self) -> bool:
        """Whether it is ready now."""
        try:
            return not self.gone and await self.backend.ready(self.http)
        except InfraError:
            return False
