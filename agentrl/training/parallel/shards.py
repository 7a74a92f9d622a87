"""Parameters of one process: whole, or a contiguous chunk where the model is sharded over ranks.

Invariant: a rank's chunk of a tensor is contiguous in row-major order. So plain and sharded models have the same
description, and another number of ranks can read a checkpoint.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class TensorChunk:
    """A contiguous chunk of a tensor's elements; checkpoints store these."""

    shape: tuple[int, ...]
    """Shape of the whole tensor."""
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
    """Shape of the whole parameter."""
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


def local(tensor: Tensor) -> Tensor:
    """This process's plain tensor of one that may be a DTensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
