"""Gathers sharded parameters on all ranks by one collective, which runs while the ranks do other work.

Invariant: parameters are sharded by rows, as many on each rank, fewer or none on the last ones.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from agentrl.training.parallel.shards import local


class Gathering:
    """The whole parameters of a unit, on their way to every rank."""

    def __init__(self, parameters: Sequence[Any], dtype: torch.dtype | None = None) -> None:
        """Send this rank's rows of DTensors, which are on one mesh; floating-point numbers in `dtype` (None: their
        own). Collective."""
        mesh = parameters[0].device_mesh
        ranks, group = mesh.size(mesh.ndim - 1), mesh.get_group(mesh.ndim - 1)
        self._whole = [(p.shape, dtype if dtype and p.is_floating_point() else p.dtype) for p in parameters]
        each = zip(parameters, self._whole, strict=True)
        parts = [_as_bytes(local(p).detach().to(mesh.device_type, kind), -(-len(p) // ranks)) for p, (_, kind) in each]
        self._sizes, own = [part.numel() for part in parts], torch.cat(parts)
        self._received = own.new_empty(ranks, own.numel())
        self._work: Any = dist.all_gather_into_tensor(self._received.view(-1), own, group=group, async_op=True)

    def wait(self) -> list[Tensor]:
        """The parameters."""
        self._work.wait()
        found = zip(self._received.split(self._sizes, dim=1), self._whole, strict=True)
        copied = ((part.clone(memory_format=torch.contiguous_format).view(-1), *form) for part, form in found)
        return [part.view(kind)[: shape.numel()].view(shape) for part, shape, kind in copied]


def _as_bytes(rows: Tensor, count: int) -> Tensor:
    """A rank's rows, and rows of zeros up to `count`, as bytes."""
    missing = (count - len(rows)) * rows.shape[1:].numel()
    return F.pad(rows.reshape(-1), (0, missing)).view(torch.uint8)
