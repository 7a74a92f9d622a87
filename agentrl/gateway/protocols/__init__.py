"""The protocols: one file each, from its requests to `TurnRequest` and from `ModelAnswer` to its answers."""

from collections.abc import Iterator
from typing import Any, Protocol

from agentrl.gateway.request import Body, ModelAnswer, TurnRequest
from agentrl.http.refusals import Refused


class WireProtocol(Protocol):
    """The names that a protocol's module has. All functions are pure."""

    STATUS: dict[str, int]
    """HTTP status of each fault."""
    HISTORY: str
    """The field of a request that holds the conversation."""
    KEEP_ALIVE: bytes
    """An event that means nothing, for a stream that waits."""

    def read(self, body: Body) -> TurnRequest:
        """Raises Refused."""

    def whole(self, answer: ModelAnswer) -> dict[str, Any]:
        """The answer as one JSON object."""

    def events(self, answer: ModelAnswer) -> Iterator[bytes]:
        """The answer as server-sent events."""

    def error(self, error: Refused) -> dict[str, Any]:
        """The error as one JSON object."""

    def error_event(self, error: Refused) -> bytes:
        """The error within a stream."""
