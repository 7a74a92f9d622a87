"""An HTTP/1.1 connection that carries one request at a time.

Why not a client library: when 256 conversations end a turn at once, the Python code of the client is the bottleneck,
and a general client takes four times the CPU of this one. It supports what sandbox and inference servers need: no
redirects, no cookies, no compression, no proxies.
"""

import asyncio
from dataclasses import dataclass
from typing import cast

END = b"\r\n\r\n"
LARGEST = 1 << 29
"""Bytes of an answer."""


class Broken(OSError):
    """The connection ended before the answer did, or the answer is not HTTP."""


@dataclass(frozen=True)
class Head:
    """The status of an answer, and the length of its body by the headers."""

    status: int
    length: int | None
    """Bytes of the body; None: until the server closes the connection."""
    chunked: bool
    keep_alive: bool
    """The connection may carry another request."""

    @classmethod
    def read(cls, raw: bytes) -> "Head":
        """Parse the bytes before the body. Raises Broken."""
        first, *rest = raw.split(b"\r\n")
        words = first.split(b" ", 2)
        if not words[0].startswith(b"HTTP/1.") or len(words) < 2 or not words[1].isdigit():
            raise Broken(f"the answer is not HTTP: {first[:80]!r}")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in rest)}
        length = headers.get(b"content-length")
        status = int(words[1])
        keep_alive = words[0] == b"HTTP/1.1" and headers.get(b"connection", b"").lower() != b"close"
        chunked = b"chunked" in headers.get(b"transfer-encoding", b"").lower()
        known = 0 if status in (204, 304) else int(length) if length is not None and not chunked else None
        return cls(status, known, chunked, keep_alive and (chunked or known is not None))

    def body(self, data: bytearray) -> bytes | None:
        """The body if `data` holds all of it, else None. Raises Broken."""
        if self.chunked:
            return join_chunks(data)
        return bytes(data[: self.length]) if self.length is not None and len(data) >= self.length else None


def join_chunks(data: bytearray) -> bytes | None:
    """The body if `data` holds all of its chunks, else None. Raises Broken."""
    parts: list[bytes] = []
    at = 0
    while (end := data.find(b"\r\n", at)) >= 0:
        try:
            size = int(data[at:end].split(b";")[0], 16)
        except ValueError as error:
            raise Broken("a chunk without a size") from error
        if not size:
            return b"".join(parts) if data.find(END, end - 2) >= 0 or data[end + 2 : end + 4] == b"\r\n" else None
        at = end + 2 + size + 2
        parts.append(bytes(data[end + 2 : at - 2]))
    return None


class Connection(asyncio.Protocol):
    """The protocol for `loop.create_connection`. `request` may be called again only after the last answer."""

    def __init__(self, largest: int = LARGEST) -> None:
        """`largest`: bytes of an answer."""
        self.largest = largest
        self.transport: asyncio.Transport | None = None
        self.idle_since = 0.0
        self._data = bytearray()
        self._head: Head | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._keep_alive = True

    @property
    def usable(self) -> bool:
        """Another request can be sent."""
        return self._keep_alive and self.transport is not None and not self.transport.is_closing()

    @property
    def answering(self) -> bool:
        """A part of an answer has arrived."""
        return self._head is not None or bool(self._data)

    async def request(self, message: bytes) -> tuple[int, bytes]:
        """Send a request; status and body of the answer. Raises Broken. After a cancellation, close the connection."""
        if not self.usable or self.transport is None:
            raise Broken("the server closed the connection")
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(message)
        try:
            return await self._answer
        finally:
            self._answer = None  # else an idle connection keeps its last answer in memory

    def close(self) -> None:
        """Close the connection."""
        self._keep_alive = False
        if self.transport is not None:
            self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport, under Ray, has no asyncio class

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._data += data
        try:
            self._check(len(self._data))
            self._read()
        except (Broken, ValueError) as error:
            self._fail(Broken(str(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._keep_alive = False
        if self._head is not None and self._head.length is None and not self._head.chunked:
            self._done(bytes(self._data))  # the end of the connection is the end of the body
        else:
            self._fail(exc if isinstance(exc, OSError) else Broken("the server closed the connection"))

    def _read(self) -> None:
        while self._head is None:
            end = self._data.find(END)
            if end < 0:
                return
            head = Head.read(bytes(self._data[:end]))
            del self._data[: end + len(END)]
            self._check(head.length or 0)
            self._head = head if head.status >= 200 else None  # 1xx answers precede the final one
        body = self._head.body(self._data)
        if body is not None:
            self._done(body)

    def _check(self, size: int) -> None:
        if size > self.largest:
            raise Broken(f"an answer of more than {self.largest} bytes")

    def _done(self, body: bytes) -> None:
        head, self._head = self._head, None
        self._data.clear()
        if head is not None and self._answer is not None and not self._answer.done():
            self._keep_alive = self._keep_alive and head.keep_alive
            self._answer.set_result((head.status, body))
        else:
            self.close()  # an answer without a request

    def _fail(self, error: Exception) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
