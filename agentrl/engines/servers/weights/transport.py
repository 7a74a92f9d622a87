"""The protocol of the ways to send weights."""

from collections.abc import Sequence
from typing import Protocol

from agentrl.engines.servers.replica import Replica


class Transport(Protocol):
    """Sends the policy's weights to replicas, between `begin_update` and `end_update`."""

    name: str

    async def push(self, replicas: Sequence[Replica]) -> None:
        """Give the replicas the present weights; returns when they have them. Raises InfraError."""

    async def close(self) -> None:
        """Let go of files, memory and process groups."""
