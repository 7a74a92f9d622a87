"""Starting and stopping the server.

Invariants: no address beyond this machine is served without a token unless someone says so; when `serve` returns, no
process of the executor is left.
"""

import asyncio
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from agentrl.errors import UserError
from agentrl.sandbox.server.app import make_app
from agentrl.sandbox.server.service import Executor, Service
from agentrl.sandbox.server.settings import Settings


def check_bind(settings: Settings) -> None:
    """Raise UserError for a public address without a token."""
    if settings.token or settings.public or is_loopback(settings.host):
        return
    raise UserError(
        f"--host {settings.host} lets other machines run code here: give clients a token (--token, or "
        "AGENTRL_SANDBOX_TOKEN), or say --public where something else guards the way"
    )


def is_loopback(host: str) -> bool:
    """Whether the address is this machine's own."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(settings: Settings) -> socket.socket:
    """A listening socket. Raises UserError where the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise UserError(
            f"--host {settings.host} --port {settings.port}: {os.strerror(error.errno or 0).lower()}; "
            "choose another, or --port 0 for a free one"
        ) from None
    listener.listen(2048)
    return listener


class Server(uvicorn.Server):
    """uvicorn's, with signals that end the process normally: the process has cleaned up, so it says so."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop it; a second SIGINT does not wait for what runs."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


def serve(pool: Executor, settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve until a signal; `ready` is told the address once requests are answered. Raises UserError, InfraError."""
    check_bind(settings)
    with bind(settings) as listener:
        config = uvicorn.Config(
            make_app(Service(pool, settings)),
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, round(settings.grace)),
            backlog=2048,
        )
        server = Server(config)
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(run(server, pool, listener, ready))


async def run(server: Server, pool: Executor, listener: socket.socket, ready: Callable[[str], None]) -> None:
    """Start the executor, then serve; whatever happens, the executor is closed."""
    try:
        await pool.start()
        host, port = listener.getsockname()[:2]
        ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        await server.serve(sockets=[listener])
    finally:
        await pool.close()
