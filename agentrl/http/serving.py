"""One guarded HTTP server: an ASGI application in the event loop of its caller.

Invariants:
- requests of foreign web pages, and of clients that are too slow, reach no handler;
- a body is bounded in bytes, seconds and packed parts, and so are all bodies that arrive at the same time;
- the server leaves signals to the run.
"""

import asyncio
import contextvars
import json
import socket
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import uvicorn
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrl.core.errors import InfraError, UserError
from agentrl.core.foreign import require_parts
from agentrl.core.json_text import encoded
from agentrl.http.refusals import Refused
from agentrl_sandbox.guard import header_fields, refusal
from agentrl_sandbox.open_files import allow_open_files
from agentrl_sandbox.server.protocol import BoundedProtocol

LOCAL = "127.0.0.1"
BACKLOG = 2048
KEEP_ALIVE = 600
"""Seconds that a connection may be idle: agents wait for their tools between requests."""
MAX_BODY_BYTES = 32 * 2**20
"""Bytes of a request's body, as in Anthropic's service."""
MAX_ARRIVING_BYTES = 16 * MAX_BODY_BYTES
"""Bytes of all bodies that arrive at the same time."""
BODY_SECONDS = 60.0
"""Seconds in which a body has to arrive."""
END_BYTES = 4096
"""Bytes at each end of a body that is too large: they name what is refused."""
MAX_MEMBERS = 1000
"""Packed parts that one body may have."""
ANY_HEADER = 32
"""Tells zlib to expect gzip's header or its own."""


class _Uvicorn(uvicorn.Server):
    """uvicorn's server, which leaves the signals to the run."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield


class HttpServer:
    """Listens from its making on; serves an application between `start` and `stop`, or in `serve_forever`."""

    def __init__(self, app: ASGIApp, host: str = LOCAL, port: int = 0) -> None:
        """`port` 0 takes a free one. Raises UserError where the port is taken, or none."""
        allow_open_files()
        try:
            self.listener = socket.create_server((host, port), backlog=BACKLOG)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(f"port {port}: {why}; choose another, or 0 for any") from None
        host, port = self.listener.getsockname()[:2]
        self.url = f"http://{LOCAL if host == '0.0.0.0' else host}:{port}"
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            backlog=BACKLOG,
        )
        self._server = _Uvicorn(config)

    async def start(self) -> None:
        """Serve in this event loop; returns once it does. Raises InfraError."""
        # An empty context: the one of the first session would follow all requests.
        serving = self._server.serve([self.listener])
        self._task = asyncio.get_running_loop().create_task(serving, context=contextvars.Context())
        while not self._server.started:
            if self._task.done():
                raise InfraError(f"the server does not start: {self._task.exception()}")
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """End it now, with its connections."""
        self.shutdown()
        await self._task

    def serve_forever(self) -> None:
        """Serve in an event loop of this thread until `shutdown`, or an interrupt."""
        asyncio.run(self._server.serve([self.listener]))

    def shutdown(self) -> None:
        """Have `serve_forever` return; any thread may call it."""
        self._server.should_exit = self._server.force_exit = True


class Guarded:
    """An ASGI application that requests of foreign web pages, and of hosts by other names, do not reach."""

    def __init__(
        self, app: ASGIApp, refuse: Callable[[Scope, int, str], Response], *, host: str = "", guarded: bool = False
    ) -> None:
        """`refuse`: the answer to a refused request, from its status and reason. `host`: the address that is served;
        `guarded`: each answer needs a secret."""
        self.app, self.refuse, self.host, self.guarded = app, refuse, host, guarded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = refusal(scope["method"], header_fields(scope["headers"]), host=self.host, guarded=self.guarded)
        await (self.app if refused is None else self.refuse(scope, *refused))(scope, receive, send)


class BodyReader:
    """Reads the bodies of one server's requests."""

    def __init__(self) -> None:
        self._arriving = 0
        """Bytes of the bodies that have not arrived in full."""

    async def read(self, http: HttpRequest, body: bytearray | None = None) -> bytes:
        """The body of a request, unpacked; `body` gets what arrives, the two ends of what is too large. Raises
        Refused."""
        body, size = bytearray() if body is None else body, 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in http.stream():
                    size += len(chunk)
                    self._add(body, chunk, size)
        except TimeoutError:
            check_size(size)
            raise Refused(f"the body takes more than {BODY_SECONDS:g} s to arrive", "slow") from None
        finally:
            self._arriving -= len(body)
        check_size(size)
        coding = http.headers.get("content-encoding", "identity")
        return bytes(body) if coding == "identity" else await asyncio.to_thread(unpacked, bytes(body), coding)

    def _add(self, body: bytearray, chunk: bytes, size: int) -> None:
        """Add a part of a body, of which `size` bytes have arrived."""
        before = len(body)
        body += chunk
        if size > MAX_BODY_BYTES:
            del body[END_BYTES:-END_BYTES]
        self._arriving += len(body) - before
        if self._arriving > MAX_ARRIVING_BYTES:
            raise Refused("too many requests arrive at once: ask again later", "busy")


def unpacked(body: bytes, coding: str) -> bytes:
    """The bytes of a packed body. Raises Refused."""
    if coding not in ("gzip", "deflate"):
        raise Refused(f"content-encoding: {coding!r} is not served; use gzip, or none")
    text = bytearray()
    for _ in range(MAX_MEMBERS):
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | ANY_HEADER)
        try:
            text += unpacker.decompress(body, MAX_BODY_BYTES + 1 - len(text))
        except zlib.error as error:
            raise Refused(f"the body is no {coding}: {error}") from error
        check_size(len(text))
        body = unpacker.unused_data
        if not unpacker.eof:
            raise Refused(f"the body is no whole {coding}: its end is missing")
        if not body:
            return bytes(text)
    raise Refused(f"the body is {coding} of more than {MAX_MEMBERS} parts")


def check_size(size: int) -> None:
    """Raises Refused for a body of too many bytes."""
    if size > MAX_BODY_BYTES:
        raise Refused(f"the body is larger than {MAX_BODY_BYTES >> 20} MiB", "large")


def parse(text: bytes) -> dict[str, Any]:
    """The JSON object of a request, also with what orjson refuses: NaN, half a surrogate pair. Raises Refused."""
    try:
        require_parts(text)
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise Refused("the body is no JSON object")
    return value


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A value as JSON that browsers read: NaN and infinity become null."""
    return Response(encoded(value), status, headers, media_type="application/json")


async def disconnected(receive: Receive) -> None:
    """Wait until the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
