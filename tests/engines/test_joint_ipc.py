"""Weights for a server on the GPUs of several ranks: who shares what, and who tells the server."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentrl.core.errors import InfraError
from agentrl.engines.servers.weights.ipc import JointIpcTransport
from agentrl.engines.servers.weights.transport import Link
from agentrl.training.parallel.ranks import Ranks

WEIGHTS = SimpleNamespace(tensors=lambda: [(f"w{i}", torch.ones(100)) for i in range(3)])


class Together(Ranks):
    """One of four ranks; what the others would give stands for it."""

    def merge(self, values: dict[str, Any]) -> dict[str, Any]:
        assert list(values) == [str(self.rank)]
        return {str(rank): f"handle {rank}" for rank in range(4)}


def push(rank: int, replicas: list[Any]) -> Any:
    return JointIpcTransport(Link(WEIGHTS, None, Path(), 500, ranks=Together(rank=rank))).push(replicas)


def server(told: list[list[str]], *, refuses: bool = False) -> SimpleNamespace:
    async def load_handles(http: Any, handles: list[str]) -> None:
        told.append(handles)
        if refuses:
            raise InfraError("no")

    return SimpleNamespace(http=None, backend=SimpleNamespace(tensor_parallel=2, load_handles=load_handles))


async def test_the_first_rank_of_a_server_tells_it_of_its_neighbours() -> None:
    told: list[list[str]] = []
    await push(2, [server(told)])
    assert told == [["handle 2", "handle 3"]] * 3  # a bucket for each tensor
    await push(3, [])


async def test_what_a_server_refuses_ends_the_push() -> None:
    told: list[list[str]] = []
    with pytest.raises(InfraError, match="no"):
        await push(0, [server(told, refuses=True)])
    assert len(told) == 1
