"""HTTP requests to an inference server: JSON in, JSON out.

Errors say what the caller may do next: after `ServerLost` nothing of the answer has arrived, so the request may be sent
again; `RequestRefused` means that the server read the request and answered an error, so it may not.
"""

import asyncio
from typing import Any

import orjson

from agentrl.core.errors import InfraError, UserError
from agentrl.trajectory.column import Column
from agentrl_sandbox.http_client import KEPT, HttpClient

NO_SERVER = (502, 504)
"""Answers of a proxy without a server behind it."""


class ServerLost(InfraError):
    """The server went away, or exceeded the timeout, before it answered."""


class RequestTimeout(ServerLost):
    """The request exceeded its timeout; the server may still work on it."""


class RequestRefused(InfraError):
    """The server answered with an error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Http:
    """Requests to `url`. Connections stay open; the number of concurrent requests has no limit."""

    def __init__(self, url: str, kept: float = KEPT) -> None:
        """`kept`: seconds that an idle connection is kept, fewer than the server keeps it. Raises UserError for an
        address that is not http://HOST or https://HOST."""
        self.url = url.rstrip("/")
        try:
            self._client = HttpClient(self.url, kept)
        except ValueError:
            raise UserError(f"rollout.base_url={url}: write http://HOST:PORT") from None

    async def post(self, path: str, body: dict[str, Any], *, timeout: float | None = None) -> Any:
        """The answer to a JSON body, in which a `Column` is a list. `timeout` in seconds, None for no limit.

        Raises ServerLost and RequestRefused.
        """
        return await self._request("POST", path, orjson.dumps(body, _plain, orjson.OPT_SERIALIZE_NUMPY), timeout)

    async def get(self, path: str, *, timeout: float | None = 10) -> Any:
        """The answer to a GET. Raises ServerLost and RequestRefused."""
        return await self._request("GET", path, b"", timeout)

    async def close(self) -> None:
        """Close all connections; a later request opens new ones."""
        await self._client.close()

    async def _request(self, method: str, path: str, body: bytes, timeout: float | None) -> Any:
        try:
            status, answer = await self._client.request(method, path, body, timeout=timeout)
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


def _plain(value: Any) -> Any:
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


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, to compare; a version without any counts as newer than all."""
    parts = [part for part in version.split(".")[:3] if part.isdigit()]
    return tuple(map(int, parts)) or (999,)
