"""The tokens of one forward pass, packed, and where each finds its sequence's keys and values.

Tokens lie pool by pool; within a pool first the sequences that take one token, by slot (decoding: one attention
call for all), then the pieces of prompts (one call each).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.engines.hf.pool import Pool, Row

DENSE = 0.7
"""Rows of a pool are packed when fewer than this share of the slots that attention would cross are decoding."""


@dataclass(frozen=True)
class Piece:
    """The next `count` tokens of a row."""

    row: Row
    count: int

    @property
    def end(self) -> int:
        return self.row.cached + self.count


@dataclass(frozen=True)
class Decode:
    """Sequences that take one token each, in slots `low` to `high`."""

    low: int
    high: int
    length: int
    """Keys to read: the longest sequence's."""
    places: Tensor | None
    """[n] slots minus `low`; None where every slot in between takes part."""
    mask: Tensor
    """[slots, 1, 1, length], 0 or -inf, added to the scores."""


@dataclass(frozen=True)
class Prefill:
    """A piece of a prompt: tokens `start` to `stop` of the pass."""

    start: int
    stop: int
    slot: int
    length: int
    """Keys to read: those cached before and the piece's own."""
    mask: Tensor | None
    """[piece, length], 0 or -inf; None where nothing was cached before: plain causal attention."""


@dataclass(frozen=True)
class Share:
    """One pool's part: tokens `start` to `stop` of the pass, the first `decoding` of them one a sequence."""

    pool: Pool
    start: int
    stop: int
    write: Tensor
    """Rows of the pool's layers, seen as [everything, head_dim], that take keys and values: [tokens * 2 * heads]."""
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
    shares: list[Share]
    outputs: Tensor
    """Indices of the tokens whose logits are wanted, int64 [n]."""
    finished: list[Row]
    """The rows they belong to: those whose tokens are all in the cache after this pass."""


def pack(pieces: Sequence[Piece]) -> Batch:
    """Lay out one forward pass. Moves rows within their pools where decoding ones lie too far apart."""
    pools = list(dict.fromkeys(piece.row.pool for piece in pieces))
    tokens: list[int] = []
    positions: list[int] = []
    outputs: list[int] = []
    finished: list[Row] = []
    shares = []
    for pool in pools:
        mine = [piece for piece in pieces if piece.row.pool is pool]
        singles = [piece for piece in mine if piece.count == 1]
        _tidy(pool, [piece.row for piece in singles])
        singles.sort(key=lambda piece: piece.row.slot)
        ordered = singles + [piece for piece in mine if piece.count > 1]
        shares.append(_share(pool, singles, ordered[len(singles) :], len(tokens)))
        for piece in ordered:
            tokens += piece.row.tokens[piece.row.cached : piece.end]
            positions += range(piece.row.cached, piece.end)
            if piece.end == len(piece.row.tokens):
                outputs.append(len(tokens) - 1)
                finished.append(piece.row)
    device = pools[0].shape.device
    return Batch(
        torch.tensor(tokens, device=device),
        torch.tensor(positions, device=device),
        shares,
        torch.tensor(outputs, device=device, dtype=torch.long),
        finished,
    )


def _tidy(pool: Pool, rows: Sequence[Row]) -> None:
    slots = [row.slot for row in rows]
    if slots and len(slots) < DENSE * (max(slots) - min(slots) + 1):
        pool.pack()


def _share(pool: Pool, singles: Sequence[Piece], pieces: Sequence[Piece], start: int) -> Share:
    prefills = []
    stop = start + len(singles)
    for piece in pieces:
        prefills.append(_prefill(piece, stop))
        stop += piece.count
    write = _write(pool, [*singles, *pieces])
    decode = _decode(pool, singles) if singles else None
    return Share(pool, start, stop, write, len(singles), decode, prefills)


def _write(pool: Pool, pieces: Sequence[Piece]) -> Tensor:
    shape, device = pool.shape, pool.shape.device
    slots = torch.tensor([piece.row.slot for piece in pieces for _ in range(piece.count)], device=device)
    places = torch.tensor([p for piece in pieces for p in range(piece.row.cached, piece.end)], device=device)
    heads = torch.arange(shape.kv_heads, device=device)
    both = torch.arange(2, device=device)[:, None] * len(pool.rows)
    slot = both + slots[:, None, None]  # [tokens, 2, 1]: keys and values are slots of one long list
    return ((slot * shape.kv_heads + heads) * pool.capacity + places[:, None, None]).flatten()


def _decode(pool: Pool, singles: Sequence[Piece]) -> Decode:
    device = pool.shape.device
    slots = [piece.row.slot for piece in singles]
    low, high = slots[0], slots[-1] + 1
    length = max(piece.end for piece in singles)
    dense = len(slots) == high - low
    lengths = [length] * (high - low)  # slots in between attend to whatever is there; nobody reads the result
    for piece in singles:
        lengths[piece.row.slot - low] = piece.end
    hidden = torch.arange(length, device=device) >= torch.tensor(lengths, device=device)[:, None]
    mask = torch.zeros(hidden.shape, dtype=pool.shape.dtype, device=device).masked_fill_(hidden, -torch.inf)
    places = None if dense else torch.tensor(slots, device=device) - low
    return Decode(low, high, length, places, mask[:, None, None])


def _prefill(piece: Piece, start: int) -> Prefill:
    row, shape = piece.row, piece.row.pool.shape
    mask = None
    if row.cached:
        hidden = torch.ones(piece.count, piece.end, dtype=torch.bool, device=shape.device).triu(row.cached + 1)
        mask = torch.zeros(hidden.shape, dtype=shape.dtype, device=shape.device).masked_fill_(hidden, -torch.inf)
    return Prefill(start, start + piece.count, row.slot, piece.end, mask)
