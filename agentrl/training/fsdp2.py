"""Sharding by FSDP2 (`fully_shard`): each parameter is a DTensor, cut along its first dimension."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from agentrl.training.fsdp import Names, Sharded
from agentrl.training.shards import Shard


class Sharded2(Sharded):
    """A model that `fully_shard` has sharded."""

    def hold(self, on: bool) -> None:
        """Leave units gathered and gradients unsummed, or not."""
        if self.keeps:
            self.root.set_reshard_after_backward(not on)
            self.root.set_requires_gradient_sync(not on)

    def shards(self) -> dict[str, Shard]:
        """What this rank has of each parameter: some of its rows, maybe none."""
        return {
            name: Shard(parameter, tuple(parameter.shape), _start(parameter), self.written)
            for name, parameter in self.named_parameters()
        }

    def _move(self, device: torch.device) -> None:
        self.root.to(device)

    def _reshard(self, unit: Any) -> None:
        unit.reshard()

    @contextmanager
    def _gathered(self, unit: Any, names: Names) -> Iterator[None]:
        places = [(self._owner(name)._parameters, name.rpartition(".")[2]) for name in names]
        sharded: list[Any] = [place[leaf] for place, leaf in places]
        with torch.no_grad():
            for (place, leaf), tensor in zip(places, sharded, strict=True):
                place[leaf] = nn.Parameter(tensor.full_tensor(), requires_grad=False)
        try:
            yield
        finally:
            for (place, leaf), tensor in zip(places, sharded, strict=True):
                place[leaf] = tensor


def wrapper(fsdp_config: Any, mesh: Any, dtypes: tuple[torch.dtype | None, torch.dtype], *, offload: bool) -> Any:
    """A function that shards one unit in place; `dtypes`: of computation (None: as stored) and of gradients on
    their way."""
    settings: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": fsdp_config.reshard_after_forward}
    if dtypes[0] is not None:
        settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtypes[0], reduce_dtype=dtypes[1])
    if offload:
        settings["offload_policy"] = CPUOffloadPolicy()
    return lambda unit: fully_shard(unit, **settings)


def prefetch(units: list[Any]) -> None:
    """Gather each unit's parameters while the unit before it computes."""
    for unit, following in pairwise(units):
        unit.set_modules_to_forward_prefetch([following])


def _start(parameter: Any) -> int:
    _, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return offset[0] * prod(parameter.shape[1:]) if parameter.ndim else 0
