"""HTTP requests to an inference server: JSON in, JSON out.

Errors say what the caller may do next: after `ServerLost` nothing of the answer has arrived, so the request may be sent
again; `RequestRefused` means that the server read the request and answered an error, so it may not.

A request takes a quarter of the CPU time that aiohttp needs (`benchmarks/http_client.py`): when hundreds of
conversations end a turn at once, the client is the bottleneck.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from agentrl.core.errors import InfraError, UserError
from agentrl.trajectory.column import Column
from agentrl_sandbox.http_client import KEPT, LARGEST, HttpClient

NO_SERVER = (502, 504)
"""Statuses of a proxy without a server behind it."""


class ServerLost(InfraError):
    """The server went away, or exceeded the timeout, before it answered."""


class RequestTimeout(ServerLost):
    """The request exceeded its timeout; the server may still work on it."""


class RequestRefused(InfraError):
    """The server answered with an error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Http(HttpClient):
    """Requests to `url`. Connections stay open; the number of concurrent requests has no limit."""

    def __init__(self, url: str, kept: float = KEPT, *, largest: int = LARGEST) -> None:
        """`kept`: seconds that an idle connection is kept, fewer than the server keeps it. `largest`: bytes of an
        answer. Raises UserError for an address that is not http://HOST or https://HOST."""
        self.url = url.rstrip("/")
        try:
            super().__init__(self.url, kept, largest=largest)
        except ValueError:
            raise UserError(f"{url} is no address of a server: write http://HOST:PORT") from None

    async def post(self, path: str, body: dict[str, Any], *, headers: str = "", timeout: float | None = None) -> Any:
        """The answer to a JSON body, in which a `Column` is a list. `headers`: lines that end with \\r\\n. `timeout` in
        seconds, None for no limit.

        Raises ServerLost and RequestRefused.
        """
        data = orjson.dumps(body, _column_as_array, orjson.OPT_SERIALIZE_NUMPY)
        with self._translated(path, timeout):
            status, answer = await self.request("POST", path, data, headers=headers, timeout=timeout)
        return self._value(path, status, answer)

    async def get(self, path: str, *, timeout: float | None = 10) -> Any:
        """The answer to a GET. Raises ServerLost and RequestRefused."""
        with self._translated(path, timeout):
            status, answer = await self.request("GET", path, timeout=timeout)
        return self._value(path, status, answer)

    @contextmanager
    def _translated(self, path: str, timeout: float | None) -> Iterator[None]:
        """Raise failures of the connection within the body as ServerLost."""
        try:
            yield
        except TimeoutError as error:
            late = f"{self.url}{path} gave no answer in {timeout:g} s" if timeout else f"{self.url} hangs"
            raise RequestTimeout(late) from error
        except OSError as error:
            raise ServerLost(f"{self.url}{path}: {error or type(error).__name__}") from error

    def _value(self, path: str, status: int, answer: bytes) -> Any:
        """The JSON or the text of an answer. Raises ServerLost and RequestRefused by its status."""
        if status in NO_SERVER:
            raise ServerLost(f"{self.url}{path} has no server behind it")
        if status >= 400:
            raise RequestRefused(f"{self.url}{path} answered {status}: {answer[:500].decode(errors='replace')}", status)
        return orjson.loads(answer) if answer[:1] in (b"{", b"[") else answer.decode(errors="replace")


def _column_as_array(value: Any) -> Any:
    """A column of numbers as orjson writes it: several times as fast as the list of its numbers."""
    if isinstance(value, Column):
        return value.numpy()
    raise TypeError(f"{type(value).__name__} is no JSON")


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
