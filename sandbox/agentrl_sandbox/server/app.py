"""The ASGI application: SandboxFusion's paths, health and metrics.

Invariants: every answer except those of /metrics and / is JSON; an answer 200 is the program's doing or has the status
SandboxError; a job that is unfinished when its client is about to give up gets a 504, after which clients of
SandboxFusion repeat the request and get the same job.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from agentrl_sandbox.job import Busy
from agentrl_sandbox.server import datasets, schema, session_calls
from agentrl_sandbox.server.body_limits import read_body
from agentrl_sandbox.server.health import health
from agentrl_sandbox.server.jupyter import run_jupyter
from agentrl_sandbox.server.middleware import Answer, Gate
from agentrl_sandbox.server.retries import Work
from agentrl_sandbox.server.run_code import run_code
from agentrl_sandbox.server.service import Call, Service
from agentrl_sandbox.server.submit import submit

BodyT = TypeVar("BodyT", bound=schema.Body)
Handler = Callable[[Service, BodyT, Call], Awaitable[Any]]


class ClientGone(Exception):
    """The client disconnected; its work is cancelled."""


def make_app(service: Service) -> Starlette:
    """The application. Its shutdown closes the executor."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        service.retries.close()
        await service.pool.close()

    app = Starlette(routes=routes(), lifespan=lifespan, exception_handlers=dict(ERRORS))
    app.state.service = service
    app.add_middleware(Gate, service=service)
    return app


def routes() -> list[Route]:
    """Every path."""
    posts = [
        post("/run_code", schema.RunCode, run_code),
        post("/run_jupyter", schema.RunJupyter, run_jupyter),
        post("/submit", schema.Submit, submit),
        post("/sessions", schema.OpenSession, session_calls.open_session),
        post("/sessions/run", schema.RunCell, session_calls.run_cell),
        post("/sessions/close", schema.SessionId, session_calls.close_session),
        post("/get_prompts", schema.GetPrompts, datasets.get_prompts),
        post("/get_prompt_by_id", schema.GetPromptById, datasets.get_prompt_by_id),
        post("/list_ids", schema.Dataset, datasets.list_ids),
        post("/get_metrics", schema.GetMetrics, datasets.get_metrics),
        post("/get_metrics_function", schema.GetMetricsFunction, datasets.get_metrics_function),
    ]
    gets = {
        "/": root,
        "/v1/ping": ping,
        "/health": show_health,
        "/metrics": show_metrics,
        "/list_datasets": no_datasets,
    }
    return [*posts, *(Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items())]


def post(path: str, body: type[BodyT], handle: Handler[BodyT]) -> Route:
    """A path that takes JSON of the form `body` and answers with the result of `handle`."""

    async def endpoint(request: Request) -> Response:
        service: Service = request.app.state.service
        call = Call(client_of(request), request.scope["agentrl_sandbox.fields"])
        async with read_body(request, service) as content:
            parsed = body.model_validate_json(content)
            if service.settings.log_code:
                call.fields["request"] = content.decode("utf-8", "replace")

            def start() -> Work:
                return Work(asyncio.ensure_future(handle(service, parsed, call)), call.fields, len(content))

            seconds = parsed.answer_within(service.settings.patience)
            if seconds is None:
                return Answer(await done(request, start(), None))
            key = hashlib.sha256(f"{path} {call.client} ".encode() + content).digest()
            return Answer(await done_or_kept(request, service, key, start, seconds))

    return Route(path, endpoint, methods=["POST"])


def client_of(request: Request) -> str:
    """The client, for fairness: the name that it sends, or its address."""
    address = request.client.host if request.client else ""
    return request.headers.get("x-client-id", address)[:128]


async def done_or_kept(
    request: Request, service: Service, key: bytes, start: Callable[[], Work], seconds: float
) -> Any:
    """The outcome of the kept job of that key, or of a new one. After `seconds` the job is kept. Raises Busy then."""
    work = service.retries.work(key, start)
    try:
        return await done(request, work, seconds)
    except TimeoutError:
        service.retries.keep(key, work)
        raise Busy(f"not done within {seconds:g} s; repeat the same request: the job keeps its place") from None
    finally:
        request.scope["agentrl_sandbox.fields"].update(work.fields)


async def done(request: Request, work: Work, seconds: float | None) -> Any:
    """The outcome of `work`, which is cancelled if the client disconnects. Raises TimeoutError after `seconds`."""
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({work.task, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        work.task.cancel()
        raise
    finally:
        disconnected = gone.done()
        gone.cancel()
    if work.task.done():
        return work.task.result()
    if not disconnected:
        raise TimeoutError
    work.task.cancel()
    raise ClientGone


async def root(request: Request) -> Response:
    """Show the server's state in a browser."""
    return RedirectResponse("/health")


async def ping(request: Request) -> Response:
    """Liveness."""
    return Answer("pong")


async def no_datasets(request: Request) -> Response:
    """Empty: rows come with each request."""
    return Answer([])


async def show_health(request: Request) -> Response:
    """Isolation and why, languages, load."""
    return Answer(await health(request.app.state.service))


async def show_metrics(request: Request) -> Response:
    """Prometheus' text format."""
    service: Service = request.app.state.service
    text = service.metrics.text(service.pool.stats())
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def invalid(request: Request, error: Exception) -> Response:
    """422 in the form that is common with pydantic."""
    assert isinstance(error, ValidationError)
    detail = [
        {"type": fault["type"], "loc": ["body", *fault["loc"]], "msg": fault["msg"], "input": short(fault["input"])}
        for fault in error.errors(include_url=False, include_context=False)
    ]
    return Answer({"detail": detail[:20]}, 422)


def short(value: Any) -> Any:
    """A refused value, shortened for the answer."""
    return value if isinstance(value, int | float | None) else str(value)[:80] if isinstance(value, str) else {}


async def busy(request: Request, error: Exception) -> Response:
    """504: the client may retry."""
    return Answer({"detail": str(error)}, 504, {"retry-after": "1"})


async def refused(request: Request, error: Exception) -> Response:
    """The status and the reason."""
    assert isinstance(error, HTTPException)
    return Answer({"detail": error.detail}, error.status_code, error.headers)


async def gone(request: Request, error: Exception) -> Response:
    """499, for the log only."""
    return Answer({"detail": "the client disconnected"}, 499)


async def failed(request: Request, error: Exception) -> Response:
    """500 for a bug; only the log has the traceback."""
    return Answer({"detail": "internal error; the server's log says more"}, 500)


ERRORS: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    ValidationError: invalid,
    Busy: busy,
    HTTPException: refused,
    ClientGone: gone,
    Exception: failed,
}
