"""The page and its answers over HTTP, for this machine only.

Invariants: binds to loopback; answers only requests that name this machine as host, so that no page from elsewhere
can read a run through a browser; nothing is ever written for a request.
"""

import asyncio
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentrl.core.errors import UserError
from agentrl.http.serving import LOCAL, Guarded, HttpServer, json_response
from agentrl.view.api import Api
from agentrl_sandbox.guard import is_loopback

STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PROMETHEUS = "text/plain; version=0.0.4"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class ViewServer(HttpServer):
    """Serves one Api, on this machine alone. `port` 0 takes a free one. Raises UserError where the port is taken."""

    def __init__(self, api: Api, port: int = 0, host: str = LOCAL) -> None:
        self.api = api
        if not is_loopback(host):
            raise UserError(f"--host {host}: the page is for this machine alone; reach it through ssh -L")
        super().__init__(Guarded(self._respond, _refused), host, port)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if request.method != "GET":
            response = Response(f"{request.method} is not served", 405, media_type="text/plain")
        elif request.url.path.startswith("/api/"):
            response = await asyncio.to_thread(self._answer, request)
        elif request.url.path == "/metrics":
            response = Response(await asyncio.to_thread(self.api.prometheus), media_type=PROMETHEUS)
        else:
            response = _file(request.url.path.strip("/") or "index.html")
        response.headers.update(HEADERS)
        await response(scope, receive, send)

    def _answer(self, request: Request) -> Response:
        question = request.url.path.removeprefix("/api/")
        if question not in self.api.questions:
            return json_response({"error": "no such question"}, 404)
        try:
            return json_response(self.api.answer(question, dict(request.query_params)))
        except UserError as error:
            return json_response({"error": str(error)}, 400)


def _file(name: str) -> Response:
    """A file of the bundle. A name, never a path: the bundle is flat."""
    file = STATIC / name
    if "/" in name or file.suffix not in TYPES or not file.is_file():
        return Response("no such file", 404, media_type="text/plain")
    return Response(file.read_bytes(), media_type=TYPES[file.suffix])


def _refused(scope: Scope, status: int, reason: str) -> Response:
    return Response(reason, status, HEADERS, "text/plain")
