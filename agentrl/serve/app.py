"""Tinker's API over HTTP: its addresses, keys, and errors in its form."""

import asyncio
import hashlib
import hmac
import signal
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentrl.core.errors import UserError
from agentrl.http.refusals import Refused
from agentrl.http.serving import BodyReader, Guarded, HttpServer, json_response, parse
from agentrl.serve.downloads import download
from agentrl.serve.service import Call, Service
from agentrl.serve.wire import PROTOBUF, named_command

BAD = (DecodeError, LookupError, TypeError, ValueError, AttributeError)
"""Errors of reading what has another form."""
STATUS = {"key": 401, "missing": 404, "lost": 410, "large": 413, "slow": 408, "busy": 429}


class App:
    """The application around a service."""

    def __init__(self, service: Service, token: str) -> None:
        """`token`: what keys have to begin with."""
        self.service, self.token, self.bodies = service, token, BodyReader()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._response(Request(scope, receive))
        except (*BAD, Refused, UserError, asyncio.CancelledError) as error:  # the last one: the server stops
            status = STATUS.get(getattr(error, "fault", ""), 400 if isinstance(error, Exception) else 503)
            response = json_response({"detail": str(error) or "the server stops", "queue_state": "active"}, status)
        await response(scope, receive, send)

    async def _response(self, http: Request) -> Response:
        """The answer to a request; a refused command counts. Raises Refused."""
        if (path := http.url.path.removeprefix("/api/v1/")).startswith("download/"):
            return download(self.service.folder, path)
        owner, arrived = self._owner(http.headers.get("x-api-key", "")), bytearray()
        try:
            answer = await self._done(http, path, owner, await self.bodies.read(http, arrived))
        except (*BAD, Refused, UserError) as error:
            if getattr(error, "fault", "") not in ("slow", "busy", "lost"):  # after which a command comes again
                await self.service.refuse(http, owner, named_command(bytes(arrived)), str(error))
            raise
        if isinstance(answer, Response):
            return answer
        return Response(answer, media_type=PROTOBUF) if isinstance(answer, bytes) else json_response(answer)

    async def _done(self, http: Request, path: str, owner: str, raw: bytes) -> Any:
        name, *rest = path.split("/")
        if (do := getattr(self.service, f"{http.method.lower()}_{name}", None)) is None:
            raise Refused(f"{http.method} /api/v1/{path[:200]} is not served: see docs/serve.md", "missing")
        body = parse(raw) if raw and http.headers.get("content-type") != PROTOBUF else {}
        answer = do(Call(owner, name, rest, body, raw, http))
        return await answer if asyncio.iscoroutine(answer) else answer

    def _owner(self, key: str) -> str:
        """The owner of a key. Raises Refused."""
        if not key or not hmac.compare_digest(key[: len(self.token)].encode(), self.token.encode()):
            raise Refused("X-API-Key: set TINKER_API_KEY to the key that agentrl serve prints", "key")
        return hashlib.sha256(key.encode()).hexdigest()[:16]


async def serve(service: Service, token: str, host: str, port: int, ready: Callable[[str], object]) -> None:
    """Serve until cancelled, or a full disk; `ready` gets the address. Raises OSError, UserError for a taken port, or
    a folder of another base."""
    guarded = Guarded(App(service, token), lambda _, status, why: json_response({"detail": why}, status), guarded=True)
    server = HttpServer(guarded, host, port)
    await service.start()
    await server.start()
    ready(server.url)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    try:
        await service.training
    finally:
        await server.stop()
        await service.close()
