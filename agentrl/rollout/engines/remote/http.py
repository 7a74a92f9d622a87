"""One server's connection pool: JSON in, JSON out.

Errors say what the caller may do next: after `Lost` nothing of the answer has arrived, so the request may be sent
again; `Refused` means that the server read the request and said no, so it may not.
"""

import asyncio
import json
from typing import Any

import aiohttp

from agentrl.errors import InfraError

_compact = json.JSONEncoder(separators=(",", ":")).encode


class Lost(InfraError):
    """The server went away, or hung past the deadline, before it answered."""


class Refused(InfraError):
    """The server answered with an error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Http:
    """Connections to `url`, kept open between requests; no limit to how many run at once."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def post(self, path: str, body: dict[str, Any], *, timeout: float | None = None) -> Any:
        """The answer to a JSON body. `timeout` in seconds, None for no limit. Raises Lost and Refused."""
        return await self._request("POST", path, body, timeout)

    async def get(self, path: str, *, timeout: float | None = 10) -> Any:
        """The answer to a GET. Raises Lost and Refused."""
        return await self._request("GET", path, None, timeout)

    async def close(self) -> None:
        """Drop every connection; a later request opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _request(self, method: str, path: str, body: dict[str, Any] | None, timeout: float | None) -> Any:
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=30)
        try:
            async with self._connected().request(method, self.url + path, json=body, timeout=limit) as response:
                text = await response.text()
        except TimeoutError as error:
            raise Lost(
                f"{self.url}{path} gave no answer in {timeout:g} s" if timeout else f"{self.url} hangs"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Lost(f"{self.url}{path}: {error or type(error).__name__}") from error
        if response.status >= 400:
            raise Refused(f"{self.url}{path} answered {response.status}: {text[:500]}", response.status)
        return json.loads(text) if text[:1] in ("{", "[") else text

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            # Servers close idle connections after 5 s; one that closes as we write looks like a dead server.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
            self._session = aiohttp.ClientSession(connector=connector, json_serialize=_compact)
        return self._session


async def quietly(call: Any) -> None:
    """Await a request whose failure changes nothing, such as an abort of something that has ended."""
    try:
        await call
    except InfraError:
        await asyncio.sleep(0)


async def serves(http: Http) -> bool:
    """Whether the server answers requests by now. Raises Lost."""
    try:
        await http.get("/health", timeout=30)
    except Refused:
        return False
    return True


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, to compare; a version without any counts as newer than all."""
    parts = [part for part in version.split(".")[:3] if part.isdigit()]
    return tuple(map(int, parts)) or (999,)
