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

    def move(self, source: int, target: int) -> None:
        """Put the sequence at `source` into the free slot `target`."""
        sequence = self.sequences[source]
        assert sequence is not None
        assert self.sequences[target] is None
        self.copy_from(self, source, target, sequence.cached)
        self.sequences[source], self.sequences[target] = None, sequence
        sequence.slot = target

    def swap(self, a: int, b: int) -> None:
        """Exchange two slots' sequences."""
        for layer in self.layers:
            layer[:, [a, b]] = layer[:, [b, a]]
        self.sequences[a], self.sequences[b] = self.sequences[b], self.sequences[a]
        for slot in (a, b):
            sequence = self.sequences[slot]
            if sequence is not None:
                sequence.slot = slot

    def copy_from(self, other: "SlotPool", source: int, target: int, count: int) -> None:
        """Copy the first `count` tokens' keys and values from `other`'s slot `source` into slot `target`."""
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine[:, target, :, :count] = theirs[:, source, :, :count]

    def pack(self) -> None:
        """Move all sequences to the lowest slots, running ones first."""
        for target in range(len(self.sequences)):
            source = self._best_from(target)
            if source is None:
                return
            if source != target and self.sequences[target] is None:
                self.move(source, target)
            elif source != target:
                self.swap(source, target)

    def _best_from(self, start: int) -> int | None:
        """The first slot from `start` on with a running sequence, else with any sequence."""
        taken = [slot for slot in range(start, len(self.sequences)) if self.sequences[slot] is not None]
        return next((slot for slot in taken if self.sequences[slot].running), taken[0] if taken else None)  # type: ignore[union-attr]

    def _zeros(self, slots: int) -> Tensor:
        shape = self.shape
        size = (2, slots, shape.kv_heads, self.capacity, shape.head_dim)
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)
