"""The packed tokens of one forward pass, and the cache slots that each one reads and writes.

Order of the tokens: pool by pool; in a pool first the sequences that take one token, by slot (decoding: one attention
call for all), then the chunks of prompts (one call each).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.engines.hf.slot_pool import CachedSequence, SlotPool

MIN_DENSITY = 0.7
"""A pool is packed when less than this share of the slots between its first and last decoding sequence is decoding."""


@dataclass(frozen=True)
class Chunk:
    """The next `count` tokens of a sequence."""

    sequence: CachedSequence
    count: int

    @property
    def end(self) -> int:
        return self.sequence.cached + self.count


@dataclass(frozen=True)
class Decode:
    """The sequences of a pool that take one token each, in slots `low` to `high`."""

    low: int
    high: int
    active: Tensor | None
    """[n] decoding slots minus `low`; None when every slot in between decodes."""
    mask: Tensor
    """[slots, 1, 1, keys of the longest sequence], 0 or -inf, added to the scores."""


@dataclass(frozen=True)
class Prefill:
    """A chunk of a prompt: tokens `start` to `stop` of the pass."""

    start: int
    stop: int
    slot: int
    length: int
    """Keys to read: those cached before and those of the chunk."""
    mask: Tensor | None
    """[chunk, length], 0 or -inf; None when nothing was cached before: plain causal attention."""


@dataclass(frozen=True)
class PoolPart:
    """The part of the pass that one pool serves: tokens `start` to `stop`; each of the first `decoding` tokens belongs
    to a sequence of its own."""

    pool: SlotPool
    start: int
    stop: int
    write: Tensor
    """Rows of a layer, viewed as [everything, head_dim], that the new keys and values go to: [tokens * 2 * heads]."""
    decoding: int
    decode: Decode | None
    prefills: list[Prefill]


@dataclass(frozen=True)
class Batch:
    """One forward pass over T tokens."""

    tokens: Tensor
    """int64 [T]."""
    positions: Tensor
    """int64 [T]."""
    parts: list[PoolPart]
    outputs: Tensor
    """Indices of the tokens whose logits are computed, int64 [n]."""
    finished: list[CachedSequence]
    """Their sequences: after this pass all of their tokens are in the cache."""


def pack(chunks: Sequence[Chunk]) -> Batch:
    """Lay out one forward pass. Packs a pool first when its decoding sequences are too far apart."""
    pools = list(dict.fromkeys(chunk.sequence.pool for chunk in chunks))
    tokens: list[int] = []
    positions: list[int] = []
    outputs: list[int] = []
    finished: list[CachedSequence] = []
    parts = []
    for pool in pools:
        mine = [chunk for chunk in chunks if chunk.sequence.pool is pool]
        singles = [chunk for chunk in mine if chunk.count == 1]
        _tidy(pool, [chunk.sequence for chunk in singles])
        singles.sort(key=lambda chunk: chunk.sequence.slot)
        ordered = singles + [chunk for chunk in mine if chunk.count > 1]
        parts.append(_part(pool, singles, ordered[len(singles) :], len(tokens)))
        for chunk in ordered:
            tokens += chunk.sequence.tokens[chunk.sequence.cached : chunk.end]
            positions += range(chunk.sequence.cached, chunk.end)
            if chunk.end == len(chunk.sequence.tokens):
                outputs.append(len(tokens) - 1)
                finished.append(chunk.sequence)
    device = pools[0].shape.device
    ids, at, last = (torch.tensor(found, device=device, dtype=torch.long) for found in (tokens, positions, outputs))
    return Batch(ids, at, parts, last, finished)


def _tidy(pool: SlotPool, sequences: Sequence[CachedSequence]) -> None:
    slots = [sequence.slot for sequence in sequences]
    if slots and len(slots) < MIN_DENSITY * (max(slots) - min(slots) + 1):
        pool.pack()


def _part(pool: SlotPool, singles: Sequence[Chunk], chunks: Sequence[Chunk], start: int) -> PoolPart:
    prefills = []
    stop = start + len(singles)
    for chunk in chunks:
        prefills.append(_prefill(chunk, stop))
        stop += chunk.count
    write = _write(pool, [*singles, *chunks])
    decode = _decode(pool, singles) if singles else None
    return PoolPart(pool, start, stop, write, len(singles), decode, prefills)


def _write(pool: SlotPool, chunks: Sequence[Chunk]) -> Tensor:
    shape, device = pool.shape, pool.shape.device
    slots = torch.tensor([chunk.sequence.slot for chunk in chunks for _ in range(chunk.count)], device=device)
    positions = torch.tensor([p for chunk in chunks for p in range(chunk.sequence.cached, chunk.end)], device=device)
    heads = torch.arange(shape.kv_heads, device=device)
    both = torch.arange(2, device=device)[:, None] * len(pool.sequences)
    slot = both + slots[:, None, None]  # [tokens, 2, 1]: keys and values are slots of one long list
    return ((slot * shape.kv_heads + heads) * pool.capacity + positions[:, None, None]).flatten()


def _decode(pool: SlotPool, singles: Sequence[Chunk]) -> Decode:
    device = pool.shape.device
    slots = [chunk.sequence.slot for chunk in singles]
    low, high = slots[0], slots[-1] + 1
    length = max(chunk.end for chunk in singles)
    dense = len(slots) == high - low
    lengths = [length] * (high - low)  # slots in between compute too; their results are not used
    for chunk in singles:
        lengths[chunk.sequence.slot - low] = chunk.end
    hidden = torch.arange(length, device=device) >= torch.tensor(lengths, device=device)[:, None]
    mask = torch.zeros(hidden.shape, dtype=pool.shape.dtype, device=device).masked_fill_(hidden, -torch.inf)
    active = None if dense else torch.tensor(slots, device=device) - low
    return Decode(low, high, active, mask[:, None, None])


def _prefill(chunk: Chunk, start: int) -> Prefill:
    sequence, shape = chunk.sequence, chunk.sequence.pool.shape
    mask = None
    if sequence.cached:
        hidden = torch.ones(chunk.count, chunk.end, dtype=torch.bool, device=shape.device).triu(sequence.cached + 1)
        mask = torch.zeros(hidden.shape, dtype=shape.dtype, device=shape.device).masked_fill_(hidden, -torch.inf)
    return Prefill(start, start + chunk.count, sequence.slot, chunk.end, mask)
