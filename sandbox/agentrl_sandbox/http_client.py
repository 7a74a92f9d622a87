"""An HTTP/1.1 client for one server: connections stay open between requests."""

import asyncio
import errno
import ssl
import time
from urllib.parse import urlsplit

from agentrl_sandbox.http_connection import LARGEST, Connection

KEPT = 3.0
"""Seconds that an idle connection is kept. Servers close theirs after 5, and a request sent at that moment is lost."""
CONNECT = 30.0
"""Seconds to connect."""


class Unreachable(OSError):
    """No connection: nothing was sent."""


class Stale(OSError):
    """The server closed an idle connection before it answered: it may or may not have read the request."""


class HttpClient:
    """Sends requests to `url`; the number of concurrent requests has no limit. Belongs to one event loop."""

    def __init__(self, url: str, kept: float = KEPT, *, largest: int = LARGEST) -> None:
        """`kept`: seconds that an idle connection is kept; `largest`: bytes of an answer. Raises ValueError for an
        address that is not http://HOST or https://HOST."""
        parts = urlsplit(url.rstrip("/"))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url}: not an address; write http://HOST:PORT")
        self.host = parts.netloc.rpartition("@")[2]
        self.prefix, self.kept, self.largest = parts.path, kept, largest
        self._address = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._idle: list[Connection] = []
        self._closed = 0
        """Calls of `close`: a connection from before the last one is not kept."""

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        headers: str = "",
        timeout: float | None = None,
        fresh: bool = False,
    ) -> tuple[int, bytes]:
        """Status and body of the answer.

        `body` is JSON. `headers`: lines, each with \\r\\n. `timeout`: seconds, None for no limit. `fresh`: use a new
        connection, which cannot be stale. Raises TimeoutError, Unreachable, Stale, and OSError for other failures.
        """
        kind = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if body else ""
        head = f"{method} {self.prefix}{path} HTTP/1.1\r\nhost: {self.host}\r\naccept: */*\r\n{headers}{kind}\r\n"
        closed = self._closed
        async with asyncio.timeout(timeout):
            connection = None if fresh else self._reused()
            stale, connection = connection is not None, connection or await self._connect()
            try:
                answer = await connection.request(head.encode() + body)
            except BaseException as error:
                connection.close()  # a late answer must not reach the next request
                if stale and isinstance(error, OSError) and not connection.answering:
                    raise Stale(str(error)) from error
                raise
        self._keep(connection, open_since=closed)
        return answer

    async def close(self) -> None:
        """Close all connections; a later request opens new ones."""
        self._closed += 1
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _reused(self) -> Connection | None:
        oldest = time.monotonic() - self.kept
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT):
                new = loop.create_connection(lambda: Connection(self.largest), *self._address, ssl=self._tls)
                return (await new)[1]
        except TimeoutError:
            raise Unreachable(errno.ETIMEDOUT, f"no connection within {CONNECT:g} s") from None
        except OSError as error:
            raise Unreachable(*error.args) from error

    def _keep(self, connection: Connection, open_since: int) -> None:
        if connection.usable and open_since == self._closed:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()
