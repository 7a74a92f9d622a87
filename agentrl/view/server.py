"""The page and its answers over HTTP, for this machine only.

Invariants: binds to loopback; answers only requests that name this machine as host, so that no page from elsewhere
can read a run through a browser; nothing is ever written for a request.
"""

import json
import math
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from agentrl.core.errors import UserError
from agentrl.view.api import Api
from agentrl_sandbox.guard import is_loopback, refusal

STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SECONDS = 30.0
"""In which a client has to send a request, and to read an answer."""
POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'"


class ViewServer(ThreadingHTTPServer):
    """Serves one Api. `port` 0 takes a free one. Raises UserError where the port is taken."""

    daemon_threads = True

    def __init__(self, api: Api, port: int = 0, host: str = "127.0.0.1") -> None:
        self.api = api
        self.open: dict[Any, float] = {}
        """Connections, and since when each waits for its client."""
        if not is_loopback(host):
            raise UserError(f"--host {host}: the page is for this machine alone; reach it through ssh -L")
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise UserError(f"--port {port}: {error.strerror}; choose another, or 0 for any") from None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread."""
        self.open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self.open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close the connections whose clients are too slow."""
        for request, since in list(self.open.items()):
            if time.monotonic() - since > SECONDS:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    """GET of a file of the bundle, or of an answer under /api/."""

    server: ViewServer
    protocol_version = "HTTP/1.1"
    timeout = SECONDS  # of a single read or write

    def do_GET(self) -> None:
        """Answer one request."""
        self.server.open[self.connection] = math.inf
        fields = {name.lower(): value for name, value in self.headers.items()}
        refused = refusal(self.command, fields, host="", guarded=False)
        if refused is not None:
            self._send(HTTPStatus(refused[0]), refused[1].encode(), "text/plain")
        else:
            self._found()
        self.server.open[self.connection] = time.monotonic()

    def _found(self) -> None:
        url = urlsplit(self.path)
        if url.path.startswith("/api/"):
            self._answer(url.path.removeprefix("/api/"), dict(parse_qsl(url.query)))
        else:
            self._file(url.path.strip("/") or "index.html")

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are nothing to tell a person about."""

    def _answer(self, question: str, query: Mapping[str, str]) -> None:
        if question not in self.server.api.questions:
            self._send(HTTPStatus.NOT_FOUND, b'{"error":"no such question"}', "application/json")
            return
        try:
            answer, status = self.server.api.answer(question, query), HTTPStatus.OK
        except UserError as error:
            answer, status = {"error": str(error)}, HTTPStatus.BAD_REQUEST
        self._send(status, to_json(answer), "application/json")

    def _file(self, name: str) -> None:
        # A name, never a path: the bundle is flat.
        file = STATIC / name
        if "/" in name or file.suffix not in TYPES or not file.is_file():
            self._send(HTTPStatus.NOT_FOUND, b"no such file", "text/plain")
            return
        self._send(HTTPStatus.OK, file.read_bytes(), TYPES[file.suffix])

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)


def to_json(value: Any) -> bytes:
    """JSON that a browser reads: NaN and infinity become null."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
