"""The little of HTTP/1.1 that a client of the sandbox needs: JSON out, JSON in, connections kept open.

Invariant: a connection goes back to the pool only after its answer was read to the end.
"""

import asyncio
import json
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from agentrl_sandbox.errors import SandboxError, UsageError

LARGEST = 256 << 20
"""Bytes of an answer."""


class Unreachable(SandboxError):
    """No connection: nothing was sent."""


@dataclass
class Connection:
    """One open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used: bool = False


class JsonClient:
    """Requests to one server; up to `connections` at a time, the others wait. For one event loop."""

    def __init__(self, url: str, *, connections: int = 256, headers: dict[str, str] | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url}: not an address; write http://HOST:PORT")
        self._parts: SplitResult = parts
        self._headers = headers or {}
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(connections)

    async def request(
        self, method: str, path: str, body: Any = None, *, timeout: float, client: str = "", once: bool = False
    ) -> tuple[int, Any]:
        """Status and JSON (text where it is none); `once`: it must not reach the server twice, come what may.

        Raises Unreachable, SandboxError.
        """
        message = self._message(method, path, body, client)
        async with self._slots:
            try:
                async with asyncio.timeout(timeout):
                    return await self._exchange(message, once)
            except TimeoutError:
                raise SandboxError(f"{self._parts.netloc}{path}: no answer within {timeout:g} s") from None
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
                raise SandboxError(f"{self._parts.netloc}{path}: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        """Close the connections that are idle."""
        while self._idle:
            self._idle.pop().writer.close()

    def _message(self, method: str, path: str, body: Any, client: str) -> bytes:
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = {
            "host": self._parts.netloc.rpartition("@")[2],
            "content-type": "application/json",
            "accept": "application/json",
            "content-length": str(len(content)),
            **self._headers,
            **({"x-client-id": quote(client)} if client else {}),
        }
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content

    async def _exchange(self, message: bytes, once: bool) -> tuple[int, Any]:
        while True:
            connection = self._idle.pop() if self._idle and not once else await self._connect()
            try:
                connection.writer.write(message)
                await connection.writer.drain()
                head = await connection.reader.readuntil(b"\r\n\r\n")
            except (OSError, EOFError):
                connection.writer.close()
                if connection.used:  # the server had closed an idle connection: nothing was answered, and runs
                    continue  # have no effect outside their sandbox
                raise
            except BaseException:
                connection.writer.close()
                raise
            return await self._answer(connection, head)

    async def _connect(self) -> Connection:
        secure = self._parts.scheme == "https"
        port = self._parts.port or (443 if secure else 80)
        try:
            reader, writer = await asyncio.open_connection(
                self._parts.hostname, port, ssl=ssl.create_default_context() if secure else None
            )
        except OSError as error:
            raise Unreachable(f"{self._parts.netloc}: cannot be reached: {error.strerror or error}") from error
        return Connection(reader, writer)

    async def _answer(self, connection: Connection, head: bytes) -> tuple[int, Any]:
        keep = False
        try:
            status, headers = parse_head(head)
            content = await read_content(connection.reader, headers)
            keep = headers.get("connection", "").lower() != "close" and "content-length" in headers
        finally:
            connection.used = True
            if keep:
                self._idle.append(connection)
            else:
                connection.writer.close()
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content.decode("utf-8", "replace")


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers, names in lower case. Raises ValueError."""
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
        raise ValueError("the answer is not HTTP")
    headers = (line.partition(":") for line in lines)
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in headers}


async def read_content(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    """The body, of a length that is told, in chunks, or up to the end. Raises EOFError, ValueError."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await read_chunks(reader)
    if "content-length" not in headers:
        return await reader.read(LARGEST)
    return await reader.readexactly(checked(int(headers["content-length"])))


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    """A body in chunks."""
    content = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        checked(len(content) + size)
        content += await reader.readexactly(size)
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return bytes(content)


def checked(size: int) -> int:
    """The size. Raises ValueError for an absurd one."""
    if not 0 <= size <= LARGEST:
        raise ValueError(f"an answer of {size} bytes")
    return size
