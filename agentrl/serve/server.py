"""Serves Tinker's API until it is interrupted."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from agentrl.core.errors import UserError
from agentrl.http.serving import HttpServer
from agentrl.serve.app import Api
from agentrl.serve.contract import Samplers, Trainer
from agentrl.serve.sampling import Samples
from agentrl.serve.service import Base, Service


async def serve(
    trainer: Trainer,
    samplers: Samplers,
    base: Base,
    folder: Path,
    host: str,
    port: int,
    keys: Mapping[str, str],
    ready: Callable[[str], None],
) -> None:
    """Serve; `ready` gets the address. Raises UserError where the port is taken."""
    service = Service(trainer, samplers, base, folder)
    try:
        server = HttpServer(Api(service, Samples(service), keys).app(host), host, port)
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror}; choose another, or 0 for any") from None
    await service.start()
    await server.start()
    try:
        ready(server.url)
        await asyncio.Event().wait()
    finally:
        await server.stop()
        await service.close()
