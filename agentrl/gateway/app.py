"""The gateway over HTTP: addresses, keys, streams, and clients that go away."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrl.core.errors import InfraError
from agentrl.core.tasks import cancelled, ends_first
from agentrl.gateway.protocols import WireProtocol, anthropic, chat, google, responses
from agentrl.gateway.request import Body, ModelAnswer
from agentrl.gateway.session import AgentSession
from agentrl.http.refusals import Refused
from agentrl.http.serving import BodyReader, Guarded, disconnected, json_response, parse

log = logging.getLogger(__name__)

QUIET_SECONDS = 10.0
"""Seconds after which a stream that waits gets an event."""
MODEL = "policy"
EVENTS = "text/event-stream"
NO_STREAM_END = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
PROTOCOLS: dict[str, WireProtocol] = {"/chat/completions": chat, "/responses": responses, "/messages": anthropic}
PROTOCOLS["/models/{model:path}:{method}"] = google
COUNTED: dict[str, WireProtocol] = {"/messages/count_tokens": anthropic, "/models/{model:path}:countTokens": google}
VERSIONS = ("v1", "v1beta", "v1beta1", "publishers", "google")
"""Parts of an address that say nothing here."""


class Sessions(Protocol):
    """The rollouts that a gateway serves, at the address `host`; `guarded`: whether keys are secret."""

    host: str
    guarded: bool

    def check(self, key: str | None) -> None:
        """Raises Refused for a key that cannot have a session."""

    def find(self, key: str | None) -> AgentSession:
        """The session with this key. Raises Refused."""

    def posts(self) -> dict[str, Callable[[str, Body], None]]:
        """Functions behind further addresses, from a key and a body."""


def make_app(sessions: Sessions) -> ASGIApp:
    """The application; `/s/KEY/v1/...` and `/v1/...` with the key as API key are the same, with `/v1` or without.

    A router without middleware: `Endpoint` answers errors, and each layer would cost every turn CPU time.
    """
    serve, routes = Handlers(sessions), []
    for start in ("/s/{key}", ""):
        posts = {path: serve.counting(protocol) for path, protocol in COUNTED.items()}
        posts |= {path: serve.answering(protocol, path) for path, protocol in PROTOCOLS.items()}
        posts |= {f"/{name}": serve.posting(handle) for name, handle in sessions.posts().items()}
        gets = {"/models": serve.models, "/models/{name:path}": serve.models}
        routes += [Route(start + path, Endpoint(handle), methods=["POST"]) for path, handle in posts.items()]
        routes += [Route(start + path, Endpoint(handle), methods=["GET"]) for path, handle in gets.items()]
    routes.append(Route("/{rest:path}", Endpoint(_nothing_here)))
    router = Router(routes)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await router({**scope, "path": _plain(scope["path"])}, receive, send)

    return Guarded(app, _refused, host=sessions.host, guarded=sessions.guarded)


def _plain(path: str) -> str:
    """The address without versions and empty parts: clients put base URLs together in many ways."""
    parts = [part for part in path.split("/") if part]
    start = 2 if parts[:1] == ["s"] else 0
    while parts[start:] and parts[start] in VERSIONS:
        del parts[start]
    return "/" + "/".join(parts)


def _refused(scope: Scope, status: int, reason: str) -> Response:
    return json_response(_protocol_of(scope).error(Refused(reason)), status)


def _protocol_of(scope: Scope) -> WireProtocol:
    """The protocol whose clients sent a request."""
    names = {name for name, _ in scope["headers"]}
    if "/messages" in scope["path"] or b"anthropic-version" in names:
        return anthropic
    if b"x-goog-api-key" in names or ":" in scope["path"].partition("/models/")[2]:
        return google
    return responses if "/responses" in scope["path"] else chat


Handle = Callable[[HttpRequest], Awaitable[Response]]


class Endpoint:
    """An ASGI application around a handler, with errors in the protocol's own form."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self.handle(HttpRequest(scope, receive))
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception as error:
            refused, protocol = _as_refusal(error), _protocol_of(scope)
            status = protocol.STATUS[refused.fault]
            later = {"Retry-After": "1"} if status in (429, 503, 529) else None  # clients send these again
            response = json_response(protocol.error(refused), status, later)
        await response(scope, receive, send)


class Handlers:
    """The functions behind the addresses."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions, self.bodies = sessions, BodyReader()

    def answering(self, protocol: WireProtocol, path: str) -> Handle:
        """The handler of requests for a turn of the model."""

        async def answer(http: HttpRequest) -> Response:
            session, body = await self._asked(http)
            sent, own = parse(body), _fields(http)
            given = await session.admitted({**sent, **own})
            model = str(given.get("model"))
            role = session.settings.role(model)
            if role.server is not None:
                address = google.address(role.model, own["method"]) if own else path
                sent = {name: value for name, value in {**given, "model": role.model}.items() if name not in own}
                answer = await session.pass_on(role, address, sent, sent.get(protocol.HISTORY))
                return json_response(answer) if isinstance(answer, dict) else Response(answer, media_type=EVENTS)
            trained, request = await role.trained(given), protocol.read(given)
            name = model if model in session.env.sides else role.name
            request = replace(request, role=name, trained=trained, sampling=role.sampling)
            work = session.ask(request, again=_sent_again(http))
            if request.stream:
                return EventStream(protocol, work)
            if not await ends_first(work, disconnected(http.receive)):
                raise ClientDisconnect
            return json_response(protocol.whole(work.result()))

        return answer

    def posting(self, handle: Callable[[str, Body], None]) -> Handle:
        """The handler of JSON that gets no answer."""

        async def post(http: HttpRequest) -> Response:
            key = _key(http)
            self.sessions.check(key)
            body = await self.bodies.read(http)
            handle(key or "", parse(body) if body else {})
            return json_response({})

        return post

    def counting(self, protocol: WireProtocol) -> Handle:
        """The handler of requests for the size of a prompt."""

        async def count(http: HttpRequest) -> Response:
            session, body = await self._asked(http)
            size = session.count(protocol.read({**parse(body), **_fields(http)}))
            return json_response({"input_tokens": size, "totalTokens": size})

        return count

    async def models(self, http: HttpRequest) -> Response:
        """The policy, in a form that clients of each protocol read."""
        self.sessions.check(_key(http))
        if "name" in http.path_params:  # any, since the policy answers to each
            return json_response(_about(http.path_params["name"]))
        found = [_about(MODEL)]
        return json_response({"object": "list", "data": found, "has_more": False, "models": found})

    async def _asked(self, http: HttpRequest) -> tuple[AgentSession, bytes]:
        """The session and the body of a request. Raises Refused."""
        key = _key(http)
        self.sessions.check(key)
        if (connection := http.scope.get("agentrl_sandbox.connection")) is not None:
            connection.owner = key
        body = await self.bodies.read(http)
        session = self.sessions.find(key)
        session.tree.size.check_body(body)
        return session, body


def _about(name: str) -> dict[str, Any]:
    anthropic_fields = {"type": "model", "display_name": name, "created_at": "2026-01-01T00:00:00Z"}
    google_fields = {"name": f"models/{name}", "supportedGenerationMethods": google.METHODS}
    return {"id": name, "object": "model", "created": 0, "owned_by": "agentrl"} | anthropic_fields | google_fields


def _key(http: HttpRequest) -> str | None:
    headers = http.headers
    bearer = headers.get("authorization", "").split()[-1:]
    given = (headers.get(name) for name in ("x-api-key", "api-key", "x-goog-api-key"))
    keys = (http.path_params.get("key"), *given, *bearer, http.query_params.get("key"))
    return next(filter(None, keys), None)


def _fields(http: HttpRequest) -> dict[str, str]:
    """The fields of a request that its address has."""
    return {name: value for name, value in http.path_params.items() if name != "key"}


def _sent_again(http: HttpRequest) -> str | None:
    """The name of a request that its client may have sent before, empty where it gives none; None: it is new."""
    name = http.headers.get("idempotency-key", "")
    return name if name or http.headers.get("x-stainless-retry-count", "0") != "0" else None


class EventStream(Response):
    """The answer as events, with others before it while the model generates."""

    def __init__(self, protocol: WireProtocol, work: asyncio.Future[ModelAnswer]) -> None:
        super().__init__(headers=NO_STREAM_END, media_type=EVENTS)
        del self.headers["content-length"]
        self.protocol, self.work = protocol, work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        either: set[asyncio.Future[Any]] = {self.work, asyncio.ensure_future(disconnected(receive))}
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while not (await asyncio.wait(either, timeout=QUIET_SECONDS, return_when=asyncio.FIRST_COMPLETED))[0]:
                await send({"type": "http.response.body", "body": self.protocol.KEEP_ALIVE, "more_body": True})
            if self.work.done():
                await send({"type": "http.response.body", "body": self._events()})
        finally:
            await cancelled(either)

    def _events(self) -> bytes:
        try:
            return b"".join(self.protocol.events(self.work.result()))
        except Exception as error:
            return self.protocol.error_event(_as_refusal(error))


async def _nothing_here(http: HttpRequest) -> Response:
    if http.method == "HEAD":
        return Response()
    served, asked = "chat/completions, responses, messages or models", http.scope["raw_path"].decode()
    raise Refused(f"{http.method} {asked} is not served; use {served} under /s/KEY/v1", "missing")


def _as_refusal(error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    if isinstance(error, InfraError):
        return Refused(str(error), "overloaded")
    if isinstance(error, RecursionError):
        return Refused("the body is nested too deep")
    log.exception("the gateway failed", exc_info=error)
    return Refused(f"agentrl failed: {type(error).__name__}: {error}", "internal")
