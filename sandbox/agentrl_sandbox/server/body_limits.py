"""Reads a request's body within bounds: bytes per request, bytes of all requests together, seconds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from agentrl_sandbox.job import Busy
from agentrl_sandbox.server.service import Service
from agentrl_sandbox.server.settings import MIB


@asynccontextmanager
async def read_body(request: Request, service: Service) -> AsyncIterator[bytes]:
    """The body, counted as pending until the request is answered. Raises HTTPException 408 or 413, and Busy."""
    declared = request.headers.get("content-length", "")
    check_size(int(declared) if declared.isdecimal() else 0, service)
    body = bytearray()
    try:
        await receive(request, body, service)
        yield bytes(body)
    finally:
        service.pending_bytes -= len(body)


async def receive(request: Request, body: bytearray, service: Service) -> None:
    """Fill `body`. Raises HTTPException, Busy."""
    try:
        async with asyncio.timeout(service.settings.body_seconds):
            async for chunk in request.stream():
                body += chunk
                service.pending_bytes += len(chunk)
                check_size(len(body), service)
    except TimeoutError:
        raise HTTPException(408, "the request took too long to arrive; send it faster or in parts") from None
    except ClientDisconnect:
        raise HTTPException(499, "the client disconnected") from None


def check_size(size: int, service: Service) -> None:
    """Raise HTTPException 413 for one request that is too large, Busy if all together are."""
    settings = service.settings
    if size > settings.max_body_mb * MIB:
        raise HTTPException(
            413, f"the request has more than {settings.max_body_mb} MiB; send less or serve with --max-body-mb"
        )
    if service.pending_bytes > settings.max_pending_mb * MIB:
        raise Busy(f"requests of {settings.max_pending_mb} MiB are already waiting; retry later")
