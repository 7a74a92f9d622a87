"""uvicorn's HTTP protocol with bounds, which it has none of: on the head of a request, on the time that a client takes
to send and to read, and on the number of connections.

Invariants:
- a connection that waits for its client for too long is closed;
- connections are never refused for others that idle: those of the owner with the most of them are closed first;
- an answer reaches a client that is still sending: what it sends is read, and dropped.
"""

import asyncio
import resource
import time
from collections import Counter

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 1 << 16
HEAD_SECONDS = 30.0
BODY_SECONDS = 75.0
"""More than servers wait before they answer that a body takes too long."""
READ_SECONDS = 60.0
"""In which a client has to take what waits for it."""
MOST = 4096
"""Connections at once; fewer where the process may open few files."""
AT_ONCE = 32
"""The part of the idle connections that is closed together: to find them takes a look at all."""


class BoundedProtocol(HttpToolsProtocol):
    """Disconnects a client that is too slow, and one that idles where others need the room."""

    owner = ""
    """The key of the last request: whose connection it is."""
    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _head: int | None = 0
    """Bytes received while the head of a request is incomplete."""
    _receiving = False
    """Whether the rest of a request is to come."""
    _last = False
    """Whether the client wants the connection closed after the answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self.since = time.monotonic()
        self._await(HEAD_SECONDS)
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._settle()
        self._was_read()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of the head."""
        super().data_received(data)
        if self._head is not None:
            self._head += len(data)
            if self._head > HEAD_BYTES:
                self.transport.close()

    def on_message_begin(self) -> None:
        """Wait for the rest of the head."""
        super().on_message_begin()
        self.scope["agentrl_sandbox.connection"] = self  # type: ignore[typeddict-unknown-key]
        self._head, self._receiving = 0, True
        self._await(HEAD_SECONDS)

    def on_headers_complete(self) -> None:
        """The head is complete: wait for the body."""
        self._head = None
        self._await(BODY_SECONDS)
        super().on_headers_complete()
        self._last = not self.cycle.keep_alive
        self.cycle.keep_alive = True  # else uvicorn would reset the connection while the client sends

    def on_message_complete(self) -> None:
        """The whole request is there."""
        super().on_message_complete()
        self._settle()
        self._receiving = False
        self._end_last()

    def on_response_complete(self) -> None:
        """The answer is sent."""
        self.since = time.monotonic()
        super().on_response_complete()
        self._end_last()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self._unread = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._was_read()

    @property
    def idle(self) -> bool:
        """Whether nothing here works for the client."""
        return self._receiving or self.cycle is None or self.cycle.response_complete

    def _make_room(self) -> None:
        most = min(MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        if len(self.connections) <= most:
            return
        here: list[BoundedProtocol] = [c for c in self.connections if not c.transport.is_closing()]  # type: ignore[misc]
        if len(here) <= most:
            return
        idle = [each for each in here if each.idle]
        owned = Counter(each.owner for each in idle)
        worst = sorted(idle or [self], key=lambda each: (-owned[each.owner], each.since))
        for each in worst[: 1 + len(worst) // AT_ONCE]:
            each.transport.abort()

    def _end_last(self) -> None:
        if self._last and not self._receiving and self.cycle.response_complete:
            self.transport.close()

    def _await(self, seconds: float) -> None:
        self._settle()
        self._late = self.loop.call_later(seconds, self.transport.close)

    def _settle(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _was_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
