"""Keys and values of sequences of similar length, in one tensor a layer.

Layout per layer: `[2, slots, kv_heads, capacity, head_dim]`, keys first. A sequence has one slot, so neighbouring
slots, cut to the longest length in use, are a view that batched attention reads without a copy.
Memory starts as zeros: masked values must be finite, since 0 * NaN is NaN.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """Layout of one token's keys and values."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


@dataclass(eq=False)
class CachedSequence:
    """A sequence in the cache: `tokens[:cached]` have their keys and values in slot `slot` of `pool`."""

    key: str
    tokens: list[int]
    pool: "SlotPool"
    slot: int
    cached: int = 0
    running: bool = True
    last_used: int = 0
    adapter: object = None
    """Of the request: keys and values are never shared with another's."""


@dataclass(eq=False)
class SlotPool:
    """Slots of one capacity."""

    shape: Shape
    capacity: int
    sequences: list[CachedSequence | None] = field(default_factory=list)
    """By slot; None is free."""
    layers: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.layers = [self._zeros(0) for _ in range(self.shape.layers)]

    @property
    def tokens(self) -> int:
        """Tokens that the allocated slots could hold."""
        return len(self.sequences) * self.capacity

    def free_slot(self) -> int | None:
        """The lowest free slot: the choice must not depend on the order in which slots were freed."""
        return next((slot for slot, sequence in enumerate(self.sequences) if sequence is None), None)

    def resize(self, slots: int) -> None:
        """Add or remove slots at the end, layer by layer, so that only one layer is in memory twice."""
        kept = min(slots, len(self.sequences))
        for i, old in enumerate(self.layers):
            self.layers[i] = self._zeros(slots)
            self.layers[i][:, :kept] = old[:, :kept]
        self.sequences = self.sequences[:kept] + [None] * (slots - kept)

    def free(self) -> None:
        """Drop all slots and their memory; the pool is not used again."""
        self.sequences.clear()
        self.layers.clear()

    def copy_from(self, other: "SlotPool", source: int, target: int, count: int) -> None:
        """Copy the first `count` tokens' keys and values from `other`'s slot `source` into slot `target`."""
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine[:, target, :, :count] = theirs[:, source, :, :count]

    def pack(self) -> None:
        """Move all sequences to the lowest slots, running ones first, layer by layer."""
        found = [sequence for sequence in self.sequences if sequence is not None]
        found.sort(key=lambda sequence: not sequence.running)  # stable: otherwise they keep their order
        slots = [sequence.slot for sequence in found]
        if slots == list(range(len(found))):
            return
        for layer in self.layers:
            layer[:, : len(found)] = layer[:, slots]
        self.sequences = [*found, *[None] * (len(self.sequences) - len(found))]
        for slot, sequence in enumerate(found):
            sequence.slot = slot

    def _zeros(self, slots: int) -> Tensor:
        shape = self.shape
        size = (2, slots, shape.kv_heads, self.capacity, shape.head_dim)
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)
