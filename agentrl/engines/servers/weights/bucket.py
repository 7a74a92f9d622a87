"""Packs tensors into buckets: runs of bytes of bounded size."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 16
"""Bytes: each tensor starts at a multiple, which suits every dtype."""

Named = tuple[str, Tensor]


@dataclass(frozen=True)
class TensorEntry:
    """Name and layout of one tensor: bytes `start` to `end`."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    end: int


@dataclass(frozen=True)
class Bucket:
    """Tensors laid out in `flat`, uint8 [bytes]."""

    flat: Tensor
    entries: list[TensorEntry]

    def copies(self, count: int) -> list["Bucket"]:
        """Copies of the bytes on each of the first `count` GPUs, ready to be read by other processes.

        A worker can open memory of another GPU, but not copy from it.
        """
        if count == 1:
            return [self]
        own = self.flat.device.index
        made = [self if i == own else Bucket(self.flat.to(f"cuda:{i}"), self.entries) for i in range(count)]
        for i in range(count):
            torch.cuda.synchronize(i)
        return made

    def tensors(self) -> list[Named]:
        """Views of the tensors."""
        return [(e.name, self.flat[e.start : e.end].view(e.dtype).reshape(e.shape)) for e in self.entries]


def buckets(tensors: Iterable[Named], most: int) -> Iterator[Bucket]:
    """Pack tensors in order into buckets of at most `most` bytes; a larger tensor has its own bucket."""
    packed: list[Named] = []
    size = 0
    for name, tensor in tensors:
        if packed and size + _room(tensor) > most:
            yield _pack(packed, size)
            packed, size = [], 0
        packed.append((name, tensor))
        size += _room(tensor)
    if packed:
        yield _pack(packed, size)


def _pack(tensors: list[Named], size: int) -> Bucket:
    flat = torch.empty(size, dtype=torch.uint8, device=tensors[0][1].device)
    entries, at = [], 0
    for name, tensor in tensors:
        raw = tensor.contiguous().reshape(-1).view(torch.uint8)
        flat[at : at + raw.numel()].copy_(raw)
        entries.append(TensorEntry(name, tuple(tensor.shape), tensor.dtype, at, at + raw.numel()))
        at += _room(tensor)
    return Bucket(flat, entries)


def _room(tensor: Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
