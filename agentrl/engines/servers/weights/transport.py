"""The protocol of the ways to send weights."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from agentrl.engines.servers.replica import Replica
from agentrl.engines.servers.weights.policy import PolicyWeights
from agentrl.training.parallel.ranks import ALONE, Ranks


@dataclass(frozen=True)
class Link:
    """The weights that a transport sends, and the means."""

    weights: PolicyWeights
    """All ranks go through its `tensors()` together, whichever of them sends."""
    model_config: Any
    """The model's configuration, which servers read."""
    folder: Path
    """Made where needed; servers see it."""
    bucket_bytes: int
    """Most bytes on their way at once."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """The trainer's device."""
    ranks: Ranks = ALONE
    """The processes that have the model, each with one GPU."""
    tensor_parallel: int = 1
    """Processes of a server."""


class Transport(Protocol):
    """Sends the policy's weights to replicas, between `begin_update` and `end_update`."""

    async def push(self, replicas: Sequence[Replica]) -> None:
        """Give the replicas the present weights; returns when they have them. Raises InfraError."""

    async def close(self) -> None:
        """Release memory and process groups, where there are any."""
        return
