"""Serves requests on a Unix socket, one a connection: a line of JSON each way. A request ends with its connection.

Programs of `EnvironmentProgram` import it in their own interpreters: standard library only.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

MAX_REQUEST_BYTES = 2**26


async def serve(path: str, answer: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
    """Answer until the process is ended."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(await reader.readline())
        async with tied_to(reader):
            writer.write(json.dumps(await answer(asked)).encode() + b"\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(connected, f"{path}.new", limit=MAX_REQUEST_BYTES, backlog=2048)
    os.rename(f"{path}.new", path)  # it is there once it answers
    await server.serve_forever()


@asynccontextmanager
async def tied_to(reader: asyncio.StreamReader) -> AsyncIterator[None]:
    """Cancel the body when the other side closes the connection."""
    body = asyncio.current_task()
    assert body is not None
    closed = asyncio.ensure_future(reader.read())
    closed.add_done_callback(lambda ended: None if ended.cancelled() else body.cancel())
    try:
        yield
    finally:
        closed.cancel()
