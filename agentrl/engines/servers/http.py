"""One server's connection pool: JSON in, JSON out.

Errors say what the caller may do next: after `ServerLost` nothing of the answer has arrived, so the request may be sent
again; `RequestRefused` means that the server read the request and said no, so it may not.
"""

import asyncio
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

import orjson

from agentrl.core.errors import InfraError, UserError
from agentrl.engines.servers.wire import Connection

KEPT = 3.0
"""Seconds for which an idle connection is used again. Servers close theirs after 5; one that closes as we write looks
dead."""
CONNECT = 30.0
"""Seconds to connect."""
NO_SERVER = (502, 504)
"""What a proxy answers when the server behind it did not."""


class ServerLost(InfraError):
    """The server went away, or hung past the deadline, before it answered."""


class RequestTimeout(ServerLost):
    """It hung past the deadline: it may still be at work on it."""


class RequestRefused(InfraError):
    """The server answered with an error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Http:
    """Connections to `url`, kept open between requests; no limit to how many run at once."""

    def __init__(self, url: str) -> None:
        """Raises UserError for what is no address."""
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"rollout.base_url={url}: write http://HOST:PORT")
        self._host, self._port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path
        self._fixed = f" HTTP/1.1\r\nhost: {parts.netloc.rpartition('@')[2]}\r\naccept: */*\r\n"
        self._idle: list[Connection] = []
        self._open = 0
        """Counts `close` calls: a connection of before is not kept."""

    async def post(self, path: str, body: dict[str, Any], *, timeout: float | None = None) -> Any:
        """The answer to a JSON body. `timeout` in seconds, None for no limit. Raises ServerLost and RequestRefused."""
        return await self._request("POST", path, orjson.dumps(body), timeout)

    async def get(self, path: str, *, timeout: float | None = 10) -> Any:
        """The answer to a GET. Raises ServerLost and RequestRefused."""
        return await self._request("GET", path, b"", timeout)

    async def close(self) -> None:
        """Drop every connection; a later request opens new ones."""
        self._open += 1
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _request(self, method: str, path: str, body: bytes, timeout: float | None) -> Any:
        kind = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if body else ""
        request = f"{method} {self._prefix}{path}{self._fixed}{kind}\r\n".encode() + body
        try:
            status, answer = await self._exchange(request, timeout)
        except TimeoutError as error:
            late = f"{self.url}{path} gave no answer in {timeout:g} s" if timeout else f"{self.url} hangs"
            raise RequestTimeout(late) from error
        except OSError as error:
            raise ServerLost(f"{self.url}{path}: {error or type(error).__name__}") from error
        if status in NO_SERVER:
            raise ServerLost(f"{self.url}{path} has no server behind it")
        if status >= 400:
            raise RequestRefused(f"{self.url}{path} answered {status}: {answer[:500].decode(errors='replace')}", status)
        return orjson.loads(answer) if answer[:1] in (b"{", b"[") else answer.decode(errors="replace")

    async def _exchange(self, request: bytes, timeout: float | None) -> tuple[int, bytes]:
        opened = self._open
        connection = await self._connected()
        try:
            async with asyncio.timeout(timeout):
                answer = await connection.ask(request)
        except BaseException:
            connection.close()  # an answer that comes late must meet nobody
            raise
        if connection.usable and opened == self._open:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    async def _connected(self) -> Connection:
        oldest = time.monotonic() - KEPT
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.close()
        async with asyncio.timeout(CONNECT):
            loop = asyncio.get_running_loop()
            return (await loop.create_connection(Connection, self._host, self._port, ssl=self._tls))[1]


async def quietly(call: Any) -> None:
    """Await a request whose failure changes nothing, such as an abort of something that has ended."""
    try:
        await call
    except InfraError:
        await asyncio.sleep(0)


async def serves(http: Http) -> bool:
    """Whether the server answers requests by now. Raises ServerLost."""
    try:
        await http.get("/health", timeout=30)
    except RequestRefused:
        return False
    return True


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, to compare; a version without any counts as newer than all."""
    parts = [part for part in version.split(".")[:3] if part.isdigit()]
    return tuple(map(int, parts)) or (999,)
