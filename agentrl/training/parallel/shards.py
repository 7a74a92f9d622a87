"""Parameters of one process: whole, or a contiguous chunk where the model is sharded over ranks.

Invariant: a rank's chunk of a tensor is contiguous in row-major order. So plain and sharded models have the same
description, and another number of ranks can read a checkpoint.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from agentrl.training.model.compute_copies import computing
from agentrl.training.parallel.ranks import ALONE, Ranks
from agentrl.training.perf.offload import offloaded_activations


@dataclass(frozen=True)
class TensorChunk:
    """A contiguous chunk of a tensor's elements; checkpoints store these."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    start: int
    """Index of the first element."""
    values: Tensor
    """Flat."""

    def read(self, start: int, count: int) -> Tensor:
        """Elements `start` to `start + count` of the whole tensor. Raises ValueError for elements outside the chunk."""
        if start < self.start or start + count > self.start + self.values.numel():
            raise ValueError(f"elements {start} to {start + count} are not in this chunk")
        return self.values[start - self.start :][:count]


@dataclass(frozen=True)
class Shard:
    """A trainable parameter of this rank."""

    parameter: Any
    """The optimizer's tensor: plain, or a DTensor."""
    shape: tuple[int, ...]
    """Of the whole parameter."""
    start: int = 0
    """Index of the first element."""
    written: bool = True
    """Whether this rank writes it to a checkpoint; False where another rank has the same elements."""

    def local_chunk(self, tensor: Any = None) -> TensorChunk:
        """This rank's chunk of the parameter, or of a `tensor` that is sharded like it; no copy."""
        values = local(self.parameter if tensor is None else tensor).detach().reshape(-1)
        return TensorChunk(self.shape, self.start, values if self.written else values[:0])

    @torch.no_grad()
    def fill(self, tensor: Any, saved: Any) -> None:
        """Copy this rank's elements of `saved` (see TensorChunk.read) into a tensor sharded like the parameter."""
        target = local(tensor)
        target.copy_(saved.read(self.start, target.numel()).view(target.shape))


def local(tensor: Any) -> Tensor:
    """This process's plain tensor of one that may be a DTensor."""
    plain: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return plain


def trainable_shards(module: Any) -> dict[str, Shard]:
    """The trainable parameters of a model, sharded or not, by their names in a plain model."""
    return {name: shard for name, shard in _shards(module).items() if shard.parameter.requires_grad}


def fixed_shards(module: Any) -> dict[str, Shard]:
    """All else that a checkpoint needs: saved buffers, and frozen parameters unless they are the base of an adapter."""
    first, adapted = ranks_of(module).first, hasattr(unwrapped(module), "get_base_model")
    frozen = {n: shard for n, shard in _shards(module).items() if not (adapted or shard.parameter.requires_grad)}
    buffers = saved_buffers(unwrapped(module)).items()
    return frozen | {name: Shard(tensor, tuple(tensor.shape), written=first) for name, tensor in buffers}


def saved_buffers(module: Any) -> dict[str, Tensor]:
    """The buffers that belong to a model's files, by name; every rank has them whole."""
    saved = module.state_dict().keys()
    return {name: tensor for name, tensor in module.named_buffers() if name in saved}


def _shards(module: Any) -> dict[str, Shard]:
    if hasattr(module, "shards"):
        return dict(module.shards())
    return {name: Shard(p, tuple(p.shape)) for name, p in module.named_parameters()}


@torch.no_grad()
def gather_trainable(module: Any) -> dict[str, Tensor]:
    """The whole trainable parameters; collective, in one all-reduce. For adapters, which fit in memory as a whole."""
    shards, ranks = trainable_shards(module), ranks_of(module)
    if ranks.mesh is None:
        return {name: shard.parameter.detach() for name, shard in shards.items()}
    sizes = [size(shard.shape) for shard in shards.values()]
    flat = torch.zeros(sum(sizes), device=ranks.mesh.device_type)
    for part, shard in zip(flat.split(sizes), shards.values(), strict=True):
        own = local(shard.parameter).reshape(-1)
        part[shard.start :][: own.numel()] = own
    torch.distributed.all_reduce(flat, group=ranks.mesh.get_group("shard"))
    parts = zip(flat.split(sizes), shards.items(), strict=True)
    return {name: part.view(shard.shape).to(shard.parameter.dtype) for part, (name, shard) in parts}


def same_shapes(mine: dict[str, Shard], saved: dict[str, Any]) -> bool:
    """Whether a checkpoint has parameters of the same names and shapes."""
    return mine.keys() == saved.keys() and all(mine[n].shape == tuple(saved[n].shape) for n in mine)


def size(shape: tuple[int, ...]) -> int:
    """Elements of a tensor."""
    return prod(shape)


def unwrapped(module: Any) -> Any:
    """The plain model of one that may be sharded."""
    return module.module if hasattr(module, "run_gathered") else module


def ranks_of(module: Any) -> Ranks:
    """The ranks that a model is sharded over."""
    ranks: Ranks = module.ranks if hasattr(module, "run_gathered") else ALONE
    return ranks


def run_gathered(module: Any, function: Callable[[], Any]) -> Any:
    """`function()` with the parameters of `module` gathered, in the dtype that it computes in."""
    with offloaded_activations(unwrapped(module)):
        if hasattr(module, "run_gathered"):
            return module.run_gathered(function)
        dtype = getattr(module, "compute_dtype", None)
        if dtype not in (torch.bfloat16, torch.float16):
            return function()
        with computing(module), torch.autocast(next(module.parameters()).device.type, dtype):
            return function()


def set_no_sync(module: Any, on: bool) -> None:
    """Switch gradient reduction and resharding of a sharded model off (`on`) or on again, between micro-batches."""
    if hasattr(module, "set_no_sync"):
        module.set_no_sync(on)
