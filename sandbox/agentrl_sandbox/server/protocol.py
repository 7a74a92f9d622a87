"""uvicorn's HTTP protocol with bounds on the head of a request: the parser itself has none."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 1 << 16
HEAD_SECONDS = 30.0


class BoundedProtocol(HttpToolsProtocol):
    """Disconnects a client whose request line and headers are too long or too slow."""

    _late: asyncio.TimerHandle | None = None
    _head: int = 0
    """Bytes received while the head of a request is incomplete."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._settle()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of the head."""
        super().data_received(data)
        if self._late is not None:
            self._head += len(data)
            if self._head > HEAD_BYTES:
                self.transport.close()

    def on_message_begin(self) -> None:
        """Wait for the rest of the head."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._settle()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._settle()
        self._late = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _settle(self) -> None:
        self._head = 0
        if self._late is not None:
            self._late.cancel()
            self._late = None
