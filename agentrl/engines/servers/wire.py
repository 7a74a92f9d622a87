"""One HTTP/1.1 connection on which one request at a time is answered.

Why not a client library: 256 conversations that end a turn in one instant wait for each other's Python, and a general
client takes four times the CPU of this one. It speaks to inference servers only: no redirects, no cookies, no
compression, no proxies.
"""

import asyncio
from dataclasses import dataclass
from typing import cast

END = b"\r\n\r\n"


class Broken(OSError):
    """The connection ended before the answer did, or what came is not HTTP."""


@dataclass(frozen=True)
class Head:
    """Status line and headers of an answer, as far as they say how long it is."""

    status: int
    length: int | None
    """Bytes of the body; None: until the server hangs up."""
    chunked: bool
    lasting: bool
    """Whether the connection may carry another request."""

    @classmethod
    def read(cls, raw: bytes) -> "Head":
        """Raises Broken."""
        first, *rest = raw.split(b"\r\n")
        words = first.split(b" ", 2)
        if not words[0].startswith(b"HTTP/1.") or len(words) < 2 or not words[1].isdigit():
            raise Broken(f"no HTTP: {first[:80]!r}")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in rest)}
        length = headers.get(b"content-length")
        status = int(words[1])
        lasting = words[0] == b"HTTP/1.1" and headers.get(b"connection", b"").lower() != b"close"
        chunked = b"chunked" in headers.get(b"transfer-encoding", b"").lower()
        known = 0 if status in (204, 304) else int(length) if length is not None and not chunked else None
        return cls(status, known, chunked, lasting and (chunked or known is not None))

    def body(self, data: bytearray) -> bytes | None:
        """The body where `data` holds all of it; None where more is to come. Raises Broken."""
        if self.chunked:
            return joined(data)
        return bytes(data[: self.length]) if self.length is not None and len(data) >= self.length else None


def joined(data: bytearray) -> bytes | None:
    """A chunked body put together; None where more is to come. Raises Broken."""
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
    """Made by `loop.create_connection`; `ask` is called again only after the last answer came."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.idle_since = 0.0
        self._data = bytearray()
        self._head: Head | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._lasting = True

    @property
    def usable(self) -> bool:
        """Whether another request can go out on it."""
        return self._lasting and self.transport is not None and not self.transport.is_closing()

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer. Raises Broken; cancelled, the connection is to be closed."""
        if not self.usable or self.transport is None:
            raise Broken("the server hung up")
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        try:
            return await self._answer
        finally:
            self._answer = None  # or an idle connection would hold on to its last answer

    def close(self) -> None:
        """Hang up."""
        self._lasting = False
        if self.transport is not None:
            self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's, where Ray runs us, is of no class of asyncio's

    def data_received(self, data: bytes) -> None:
        self._data += data
        try:
            self._read()
        except (Broken, ValueError) as error:
            self._fail(Broken(str(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lasting = False
        if self._head is not None and self._head.length is None and not self._head.chunked:
            self._done(bytes(self._data))  # its end was to be the body's end
        else:
            self._fail(exc if isinstance(exc, OSError) else Broken("the server hung up"))

    def _read(self) -> None:
        while self._head is None:
            end = self._data.find(END)
            if end < 0:
                return
            head = Head.read(bytes(self._data[:end]))
            del self._data[: end + len(END)]
            self._head = head if head.status >= 200 else None  # "continue" and its like precede the answer
        body = self._head.body(self._data)
        if body is not None:
            self._done(body)

    def _done(self, body: bytes) -> None:
        head, self._head = self._head, None
        self._data.clear()
        if head is not None and self._answer is not None and not self._answer.done():
            self._lasting = self._lasting and head.lasting
            self._answer.set_result((head.status, body))
        else:
            self.close()  # nobody asked

    def _fail(self, error: Exception) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
