"""The gateway over HTTP: addresses, keys, bodies, streams, and clients that go away."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agentrl.core.json_text import to_json
from agentrl.gateway.forest import Pending
from agentrl.gateway.protocols import WireProtocol, anthropic, chat, responses
from agentrl.gateway.request import Body, Refused, Request
from agentrl.gateway.session import Session

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_BYTES = 64 * 2**20
"""Of a request's body."""
QUIET = 10.0
"""Seconds after which a stream that waits gets an event."""
NO_STREAM_END = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Sessions(Protocol):
    """The rollouts that a gateway serves."""

    model: str
    """The name under which /v1/models lists the policy."""

    def find(self, key: str | None) -> Session:
        """The session with this key. Raises Refused."""


def make_app(sessions: Sessions) -> Starlette:
    """The application; `/s/KEY/v1/...` and `/v1/...` with the key as API key are the same."""
    serve = Handlers(sessions)
    protocols: tuple[tuple[str, WireProtocol], ...] = (
        ("/chat/completions", chat),
        ("/responses", responses),
        ("/messages", anthropic),
    )
    routes = []
    for start in ("/s/{key}/v1", "/v1", "/s/{key}"):
        routes += [Route(start + path, serve.answering(protocol), methods=["POST"]) for path, protocol in protocols]
        routes.append(Route(f"{start}/messages/count_tokens", serve.guarded(anthropic, serve.count), methods=["POST"]))
        routes.append(Route(f"{start}/models", serve.guarded(chat, serve.models)))
        routes.append(Route(f"{start}/models/{{name:path}}", serve.guarded(chat, serve.model)))
    routes.append(Route("/{rest:path}", serve.guarded(chat, _nothing_here), methods=["GET", "HEAD", "POST", "PUT"]))
    return Starlette(routes=routes)


class Handlers:
    """The functions behind the addresses."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    def guarded(
        self, protocol: WireProtocol, handle: Callable[[HttpRequest], Awaitable[Response]]
    ) -> Callable[[HttpRequest], Coroutine[Any, Any, Response]]:
        """The handler, with errors in the protocol's own form."""

        async def handler(http: HttpRequest) -> Response:
            try:
                return await handle(http)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                refused = _as_refusal(error)
                return _json(protocol.error(refused), protocol.STATUS[refused.fault])

        return handler

    def answering(self, protocol: WireProtocol) -> Callable[[HttpRequest], Coroutine[Any, Any, Response]]:
        """The handler of requests for a turn of the model."""

        async def answer(http: HttpRequest) -> Response:
            session = self._session(http)
            request = protocol.read(await _body(http))
            pending = session.begin(request)
            if request.stream:
                stream = _stream(protocol, session, request, pending)
                return StreamingResponse(stream, media_type="text/event-stream", headers=NO_STREAM_END)
            return _json(protocol.whole(await _unless_gone(http, session.answer(request, pending))))

        return self.guarded(protocol, answer)

    async def count(self, http: HttpRequest) -> Response:
        """Tokens of a prompt, in Anthropic's form."""
        session = self._session(http)
        return _json({"input_tokens": session.count(anthropic.read(await _body(http)))})

    async def models(self, http: HttpRequest) -> Response:
        """The policy, in a form that clients of either protocol read."""
        self._session(http)
        return _json({"object": "list", "data": [self._about(self.sessions.model)], "has_more": False})

    async def model(self, http: HttpRequest) -> Response:
        """Whatever a client calls the model, it is the policy."""
        self._session(http)
        return _json(self._about(http.path_params["name"]))

    def _session(self, http: HttpRequest) -> Session:
        bearer = http.headers.get("authorization", "").removeprefix("Bearer ").strip()
        return self.sessions.find(http.path_params.get("key") or http.headers.get("x-api-key") or bearer or None)

    @staticmethod
    def _about(name: str) -> dict[str, Any]:
        anthropic_fields = {"type": "model", "display_name": name, "created_at": "2026-01-01T00:00:00Z"}
        return {"id": name, "object": "model", "created": 0, "owned_by": "agentrl", **anthropic_fields}


async def _body(http: HttpRequest) -> Body:
    """The JSON object of a request. Raises Refused."""
    received = bytearray()
    async for chunk in http.stream():
        received += chunk
        if len(received) > MOST_BYTES:
            raise Refused(f"the body is larger than {MOST_BYTES >> 20} MiB", "large")
    try:
        body = json.loads(received)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused("the body is no JSON object")
    return body


async def _stream(protocol: WireProtocol, session: Session, request: Request, pending: Pending) -> AsyncIterator[bytes]:
    """The answer as events, with others before it while the model thinks."""
    work = asyncio.ensure_future(session.answer(request, pending))
    try:
        while not (await asyncio.wait({work}, timeout=QUIET))[0]:
            yield protocol.KEEP_ALIVE
        for event in protocol.events(work.result()):
            yield event
    except Exception as error:
        yield protocol.error_event(_as_refusal(error))
    finally:
        await _ended(work)


async def _unless_gone(http: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client goes away. Raises ClientDisconnect."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(http))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        await _ended(task)
        await _ended(gone)


async def _gone(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _ended(task: "asyncio.Future[Any]") -> None:
    """End a task, whatever its result."""
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task


async def _nothing_here(http: HttpRequest) -> Response:
    if http.method == "HEAD":
        return Response()
    raise Refused(
        f"{http.method} {http.url.path} is not served; use chat/completions, responses, messages or models under "
        "/s/KEY/v1",
        "missing",
    )


def _as_refusal(error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    log.exception("the gateway failed", exc_info=error)
    return Refused(f"agentrl failed: {type(error).__name__}: {error}", "internal")


def _json(value: dict[str, Any], status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")
