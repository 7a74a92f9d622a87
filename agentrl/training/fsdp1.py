"""Sharding by FSDP1 (`actor.strategy=fsdp`): each unit's parameters lie in one flat tensor."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp._runtime_utils import _reshard

from agentrl.errors import UserError
from agentrl.training.fsdp import Names, Sharded
from agentrl.training.shards import Shard, size


class Sharded1(Sharded):
    """A model that FSDP1 has sharded."""

    def shards(self) -> dict[str, Shard]:
        """What this rank has of each parameter: a run of its elements, maybe none."""
        starts = {id(p): start for unit, _ in self._units for p, start in _starts(unit)}
        return {
            name: Shard(parameter, tuple(self._shapes[name]), starts[id(parameter)], self.written)
            for name, parameter in self.named_parameters()
        }

    def _move(self, device: torch.device) -> None:
        for unit, _ in self._units:
            if unit._handle is not None:
                unit._handle.flat_param_to(device)
                # FSDP1 keeps a second name for the shard.
                unit._handle.flat_param._local_shard = unit._handle.flat_param.data

    def _reshard(self, unit: Any) -> None:
        if unit._handle is not None:
            _reshard(unit, unit._handle, True)

    @contextmanager
    def _gathered(self, unit: Any, names: Names) -> Iterator[None]:
        with FSDP.summon_full_params(unit, recurse=False, writeback=False):
            yield


def wrapper(fsdp_config: Any, mesh: Any, dtypes: tuple[torch.dtype | None, torch.dtype], *, offload: bool) -> Any:
    """A function that wraps one unit; `dtypes`: of computation (None: as stored) and of gradients on their way."""
    hybrid = mesh.ndim == 2
    if hybrid and mesh["shard"].size() == 1:
        raise UserError("actor.fsdp_config.fsdp_size=1: FSDP1 shards, it does not copy; set actor.strategy=fsdp2")
    strategies = {
        (False, True): ShardingStrategy.FULL_SHARD,
        (False, False): ShardingStrategy.SHARD_GRAD_OP,
        (True, True): ShardingStrategy.HYBRID_SHARD,
        (True, False): ShardingStrategy._HYBRID_SHARD_ZERO2,
    }
    settings: dict[str, Any] = {
        "device_mesh": mesh,
        "sharding_strategy": strategies[hybrid, fsdp_config.reshard_after_forward],
        "use_orig_params": True,
        "forward_prefetch": fsdp_config.forward_prefetch,
        "cpu_offload": CPUOffload(offload_params=offload),
        "device_id": _device(mesh.device_type),
    }
    if dtypes[0] is not None:
        settings["mixed_precision"] = MixedPrecision(param_dtype=dtypes[0], reduce_dtype=dtypes[1])
    return lambda unit: FSDP(unit, **settings)


def put(module: nn.Module, name: str, unit: nn.Module) -> None:
    """Replace a submodule."""
    owner, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(owner), leaf, unit)


def _starts(unit: Any) -> Iterator[tuple[Any, int]]:
    if unit._handle is None:
        return
    flat = unit._handle.flat_param
    for parameter, place, shape in zip(flat._params, flat._shard_param_infos, flat._shapes, strict=True):
        yield parameter, place.intra_param_start_idx if place.in_shard else size(shape)


def _device(kind: str) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
