"""The application in uvicorn."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from agentrl_sandbox.server.app import make_app
from agentrl_sandbox.server.protocol import BoundedProtocol
from agentrl_sandbox.server.service import Executor, Service
from agentrl_sandbox.server.settings import Settings


class Server(uvicorn.Server):
    """uvicorn's server, with signals that end the process normally, after the cleanup."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop it; a second SIGINT does not wait for running programs."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


def make_server(pool: Executor, settings: Settings) -> Server:
    """A server that is ready for a socket."""
    config = uvicorn.Config(
        make_app(Service(pool, settings)),
        http=BoundedProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(settings.grace)),
        backlog=2048,
    )
    return Server(config)
