"""Gathers sharded parameters on all ranks by one collective, which runs while the ranks do other work.

Invariant: parameters are sharded by rows, as many on each rank, fewer or none on the last ones.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.training.parallel.shards import local

ALIGNMENT = 16
"""Bytes: the rows of each parameter start at a multiple, which suits every dtype."""


class Layout(NamedTuple):
    """A parameter among the bytes of a rank."""

    shape: torch.Size
    """Shape of the whole parameter."""
    dtype: torch.dtype
    size: int
    """Bytes of a rank's rows."""

    @property
    def room(self) -> int:
        """Those bytes, aligned."""
        return -(-self.size // ALIGNMENT) * ALIGNMENT


class Gathering:
    """The whole parameters of a unit, on their way to every rank."""

    def __init__(self, parameters: Sequence[Any], dtype: torch.dtype | None = None) -> None:
        """Send this rank's rows of DTensors, which are on one mesh; floating-point numbers in `dtype` (None: their
        own). Collective."""
        mesh = parameters[0].device_mesh
        ranks, group = mesh.size(mesh.ndim - 1), mesh.get_group(mesh.ndim - 1)
        self._layouts = [_layout(p, dtype if dtype and p.is_floating_point() else p.dtype, ranks) for p in parameters]
        own = torch.empty(sum(layout.room for layout in self._layouts), dtype=torch.uint8, device=mesh.device_type)
        for part, parameter, layout in zip(self._split(own), parameters, self._layouts, strict=True):
            rows = local(parameter).detach().reshape(-1)
            part[: rows.numel() * layout.dtype.itemsize].view(layout.dtype).copy_(rows)
        self._received = own.new_empty(ranks, own.numel())
        self._work: Any = dist.all_gather_into_tensor(self._received.view(-1), own, group=group, async_op=True)

    def wait(self) -> list[Tensor]:
        """The parameters."""
        self._work.wait()
        rows = zip(self._split(self._received), self._layouts, strict=True)
        flat = ((part[..., : layout.size].reshape(-1).view(layout.dtype), layout.shape) for part, layout in rows)
        return [numbers[: shape.numel()].view(shape) for numbers, shape in flat]

    def _split(self, packed: Tensor) -> tuple[Tensor, ...]:
        return packed.split([layout.room for layout in self._layouts], dim=-1)


def _layout(parameter: Any, dtype: torch.dtype, ranks: int) -> Layout:
    rows = -(-len(parameter) // ranks)
    return Layout(parameter.shape, dtype, rows * parameter.shape[1:].numel() * dtype.itemsize)
