"""Keys and values of sequences of similar length, in one tensor a layer.

Layout per layer: `[2, slots, kv_heads, capacity, head_dim]`, keys first. A sequence keeps one slot, so a run of
neighbouring slots, cut to the longest live length, is a view that batched attention reads without a copy.
Memory starts out as zeros: what lies behind a mask must be finite, since 0 * NaN is NaN.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """What one token's keys and values take."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


@dataclass(eq=False)
class Row:
    """One sequence's place in the cache: `tokens[:cached]` have their keys and values there."""

    key: str
    tokens: list[int]
    pool: "Pool"
    slot: int
    cached: int = 0
    running: bool = True
    last_used: int = 0


@dataclass(eq=False)
class Pool:
    """Slots of one capacity."""

    shape: Shape
    capacity: int
    rows: list[Row | None] = field(default_factory=list)
    """By slot; None is free."""
    layers: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.layers = [self._zeros(0) for _ in range(self.shape.layers)]

    @property
    def tokens(self) -> int:
        """Tokens that the allocated slots could hold."""
        return len(self.rows) * self.capacity

    def free_slot(self) -> int | None:
        """The lowest free slot: which one must not depend on the order in which slots came free."""
        return next((slot for slot, row in enumerate(self.rows) if row is None), None)

    def resize(self, slots: int) -> None:
        """Add or cut slots at the end, layer by layer so that only one layer is held twice."""
        kept = min(slots, len(self.rows))
        for i, old in enumerate(self.layers):
            self.layers[i] = self._zeros(slots)
            self.layers[i][:, :kept] = old[:, :kept]
        self.rows = self.rows[:kept] + [None] * (slots - kept)

    def move(self, source: int, target: int) -> None:
        """Put the row at `source` into the free slot `target`."""
        row = self.rows[source]
        assert row is not None
        assert self.rows[target] is None
        self.copy_from(self, source, target, row.cached)
        self.rows[source], self.rows[target] = None, row
        row.slot = target

    def swap(self, a: int, b: int) -> None:
        """Exchange two slots' rows."""
        for layer in self.layers:
            layer[:, [a, b]] = layer[:, [b, a]]
        self.rows[a], self.rows[b] = self.rows[b], self.rows[a]
        for slot in (a, b):
            row = self.rows[slot]
            if row is not None:
                row.slot = slot

    def copy_from(self, other: "Pool", source: int, target: int, count: int) -> None:
        """Copy the first `count` tokens' keys and values from `other`'s slot `source` into slot `target`."""
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine[:, target, :, :count] = theirs[:, source, :, :count]

    def pack(self) -> None:
        """Bring all rows to the lowest slots, running ones first."""
        for target in range(len(self.rows)):
            source = self._best_from(target)
            if source is None:
                return
            if source != target and self.rows[target] is None:
                self.move(source, target)
            elif source != target:
                self.swap(source, target)

    def _best_from(self, start: int) -> int | None:
        """The first slot from `start` on with a running row, else with any row."""
        taken = [slot for slot in range(start, len(self.rows)) if self.rows[slot] is not None]
        return next((slot for slot in taken if self.rows[slot].running), taken[0] if taken else None)  # type: ignore[union-attr]

    def _zeros(self, slots: int) -> Tensor:
        shape = self.shape
        size = (2, slots, shape.kv_heads, self.capacity, shape.head_dim)
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)
