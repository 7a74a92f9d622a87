"""Parameters as one process has them: whole, or a run of their elements where a model is sharded over ranks.

Invariant: a rank's part of a tensor is a run of its elements in row-major order. So one description fits a plain
model and a sharded one, and a checkpoint can be read by another number of ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from agentrl.training.parallel.ranks import ALONE, Ranks
from agentrl.training.perf.offload import offloaded_activations


@dataclass(frozen=True)
class TensorChunk:
    """A run of a tensor's elements: what checkpoints are made of."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    start: int
    """Which of its elements comes first here."""
    values: Tensor
    """Flat."""

    def read(self, start: int, count: int) -> Tensor:
        """Elements `start` to `start + count` of the whole tensor, which must lie within the run."""
        if start < self.start or start + count > self.start + self.values.numel():
            raise ValueError(f"elements {start} to {start + count} are not in this piece")
        return self.values[start - self.start :][:count]


@dataclass(frozen=True)
class Shard:
    """A trainable parameter here."""

    parameter: Any
    """What the optimizer steps: a plain tensor, or a DTensor."""
    shape: tuple[int, ...]
    """Of the whole parameter."""
    start: int = 0
    """Which of its elements comes first here."""
    written: bool = True
    """Whether it is this rank's to write into a checkpoint: another may have the same elements."""

    def local_chunk(self, tensor: Any = None) -> TensorChunk:
        """This rank's run of the parameter, or of a `tensor` that lies as it does; no copy."""
        values = local(self.parameter if tensor is None else tensor).detach().reshape(-1)
        return TensorChunk(self.shape, self.start, values if self.written else values[:0])

    @torch.no_grad()
    def fill(self, tensor: Any, saved: Any) -> None:
        """Copy this rank's run of `saved` (with `read`, as a Piece has it) into a tensor that lies as the parameter."""
        target = local(tensor)
        target.copy_(saved.read(self.start, target.numel()).view(target.shape))


def local(tensor: Any) -> Tensor:
    """The plain tensor that this process has of one that may be a DTensor."""
    plain: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return plain


def trainable_shards(module: Any) -> dict[str, Shard]:
    """The trainable parameters of a model, sharded or not, under the names they have in a plain one."""
    if hasattr(module, "shards"):
        return {name: shard for name, shard in module.shards().items() if shard.parameter.requires_grad}
    return {n: Shard(p, tuple(p.shape)) for n, p in module.named_parameters() if p.requires_grad}


@torch.no_grad()
def gather_trainable(module: Any) -> dict[str, Tensor]:
    """The trainable parameters, whole. Of a sharded model every rank takes part, in one collective that moves nothing
    else: for adapters, which fit in memory side by side."""
    shards, ranks = trainable_shards(module), ranks_of(module)
    if ranks.mesh is None:
        return {name: shard.parameter.detach() for name, shard in shards.items()}
    sizes = [size(shard.shape) for shard in shards.values()]
    flat = torch.zeros(sum(sizes), device=ranks.mesh.device_type)
    for run, shard in zip(flat.split(sizes), shards.values(), strict=True):
        own = local(shard.parameter).reshape(-1)
        run[shard.start :][: own.numel()] = own
    torch.distributed.all_reduce(flat, group=ranks.mesh.get_group("shard"))
    runs = zip(flat.split(sizes), shards.items(), strict=True)
    return {name: run.view(shard.shape).to(shard.parameter.dtype) for run, (name, shard) in runs}


def same_shapes(mine: dict[str, Shard], saved: dict[str, Any]) -> bool:
    """Whether what was saved is of the same parameters."""
    return mine.keys() == saved.keys() and all(mine[n].shape == tuple(saved[n].shape) for n in mine)


def size(shape: tuple[int, ...]) -> int:
    """Elements of a tensor."""
    return prod(shape)


def unwrapped(module: Any) -> Any:
    """The model itself, sharded or not."""
    return module.module if hasattr(module, "run_gathered") else module


def ranks_of(module: Any) -> Ranks:
    """The processes that a model is sharded over."""
    ranks: Ranks = module.ranks if hasattr(module, "run_gathered") else ALONE
    return ranks


def run_gathered(module: Any, function: Callable[[], Any]) -> Any:
    """`function()` where the parameters of `module` are at hand, in the number format that it computes in."""
    with offloaded_activations(unwrapped(module)):
        if hasattr(module, "run_gathered"):
            return module.run_gathered(function)
        dtype = getattr(module, "compute_dtype", None)
        if dtype not in (torch.bfloat16, torch.float16):
            return function()
        with torch.autocast(next(module.parameters()).device.type, dtype):
            return function()


def set_no_sync(module: Any, on: bool) -> None:
    """Whether a sharded model may leave its units gathered, and gradients unsummed, after the next passes."""
    if hasattr(module, "set_no_sync"):
        module.set_no_sync(on)
