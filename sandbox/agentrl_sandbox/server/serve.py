"""Starts and stops the server.

Invariants: other machines are served without a token only with --public; when `serve` returns, no process of the
executor is left.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from agentrl_sandbox.errors import UsageError
from agentrl_sandbox.guard import is_loopback
from agentrl_sandbox.open_files import allow_open_files
from agentrl_sandbox.server.settings import Settings

if TYPE_CHECKING:
    from agentrl_sandbox.server.service import Executor


def check_bind(settings: Settings) -> None:
    """Raise UsageError for a public address without a token."""
    if settings.token or settings.public or is_loopback(settings.host):
        return
    raise UsageError(
        f"--host {settings.host} lets other machines run code here: give clients a token (--token, or "
        "AGENTRL_SANDBOX_TOKEN), or say --public if something else controls access"
    )


def bind(settings: Settings) -> socket.socket:
    """A listening socket. Raises UsageError if the address is taken or not this machine's."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise UsageError(
            f"--host {settings.host} --port {settings.port}: {os.strerror(error.errno or 0).lower()}; "
            "choose another, or --port 0 for a free one"
        ) from None
    listener.listen(2048)
    return listener


def serve(pool: "Executor", settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve until a signal; calls `ready` with the address when it can answer. Raises UsageError, SandboxError."""
    check_bind(settings)
    allow_open_files()
    with bind(settings) as listener, asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run(pool, settings, listener, ready))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def run(pool: "Executor", settings: Settings, listener: socket.socket, ready: Callable[[str], None]) -> None:
    """Start the executor, then serve; always closes the executor."""
    starting = asyncio.ensure_future(pool.start())
    try:
        web = await asyncio.to_thread(import_module, "agentrl_sandbox.server.web")  # takes as long as the executor
        await starting
        host, port = listener.getsockname()[:2]
        ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        await web.make_server(pool, settings).serve(sockets=[listener])
    finally:
        starting.cancel()
        await asyncio.wait([starting])
        await pool.close()
