"""Middleware of every request: the guard, the token, the log line, the counters, and the answer to unexpected errors.

Invariant: the log and the counters hold no text of a client, unless `log_code` is set.
"""

import hmac
import json
import logging
import time
import traceback
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl_sandbox.guard import header_fields, refusal
from agentrl_sandbox.server.service import Service

LOGGER = logging.getLogger("agentrl_sandbox.server")
OPEN = frozenset({"/v1/ping", "/health"})
"""Paths that need no token: health checks."""
PATHS = frozenset(
    {
        *("/", "/v1/ping", "/health", "/metrics", "/run_code", "/run_jupyter", "/submit", "/get_prompts"),
        *("/get_prompt_by_id", "/list_datasets", "/list_ids", "/get_metrics", "/get_metrics_function"),
        *("/sessions", "/sessions/run", "/sessions/close"),
    }
)


class Answer(Response):
    """JSON in ASCII: the output of programs may hold anything."""

    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(json.dumps(content, separators=(",", ":")).encode(), status, headers)


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.service = service
        token = service.settings.token
        self._expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500
        fields: dict[str, Any] = {}
        scope["agentrl_sandbox.fields"] = fields

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._answer(scope, receive, noting)
        except Exception:
            fields["traceback"] = traceback.format_exc()
            raise
        finally:
            self._note(scope, status, time.perf_counter() - start, fields)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = self._expected is not None
        fields, host = header_fields(scope["headers"]), self.service.settings.host
        refused = refusal(scope["method"], fields, host=host, guarded=guarded)
        headers = {}
        if refused is None and not self._allowed(scope):
            refused = 401, "token missing or wrong; send it as 'Authorization: Bearer TOKEN'"
            headers = {"www-authenticate": "Bearer"}
        answer = self.app if refused is None else Answer({"detail": refused[1]}, refused[0], headers)
        await answer(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        if self._expected is None or scope["path"] in OPEN:
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, self._expected)

    def _note(self, scope: Scope, status: int, seconds: float, fields: dict[str, Any]) -> None:
        path = scope["path"] if scope["path"] in PATHS else "other"
        self.service.metrics.count("agentrl_sandbox_requests_total", path=path, status=str(status))
        self.service.metrics.observe(path, seconds)
        level = logging.ERROR if status == 500 else logging.INFO
        if LOGGER.isEnabledFor(level):
            known = {"path": path, "status": status, "ms": round(seconds * 1000, 2)}
            LOGGER.log(level, "request", extra={"fields": known | fields})
