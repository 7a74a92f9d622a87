"""The share of a batch as it goes to its ranks: where its tokens are, and the columns that are computed where the whole
batch is known.

Invariants:
- no token and no column of a rank goes through the process that has the whole batch, unless it reads them;
- every number arrives bit for bit.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.training.batches.batch import Batch
from agentrl.training.batches.packing import pack_ledgers
from agentrl.training.batches.sources import Source
from agentrl.trajectory.store import Body

Columns = dict[str, NDArray[Any]]
"""By name."""
OF_SEQUENCES = ("trajectory", "group", "index", "side", "truncated", "key", "counts", "teacher")
OF_TOKENS = ("mask", "advantages", "returns", "rejected", "importance", "capped")
"""Columns of the whole batch that ranks read: one entry a token, or a line."""


@dataclass(frozen=True)
class Share:
    """The sequences of a rank, and as a pattern one more, after which all shares have the same columns."""

    columns: Columns
    sources: tuple[Source, ...] | None
    """Their tokens; None where the rank has them."""
    version: int | None
    own: int
    """The number of sequences without the pattern."""
    computed: Sequence[Any] = ()
    """References of the `computed_columns` of all ranks, where the shares were others."""
    wanted: Collection[str] = ()
    """Columns of the rank that are read where the whole batch is."""

    @classmethod
    def of(cls, batch: Batch, sequences: Sequence[int], *, held: bool = False, **given: Any) -> "Share":
        """The share of these sequences, whose tokens are in a store. `held`: whether the rank has them."""
        assert batch.sources is not None
        optional = [source.outline.columns for source in batch.sources.each]
        pattern = [] if held or (sequences and not max(optional)) else [optional.index(max(optional))]
        share = batch.share([*sequences, *pattern])
        columns = {name: share.columns[name].numpy() for name in (*OF_SEQUENCES, *OF_TOKENS) if name in share.columns}
        assert share.sources is not None
        return cls(columns, None if held else share.sources.each, share.sources.version, len(sequences), **given)

    @property
    def references(self) -> list[Any]:
        """Of the bodies of its trajectories, and of computed columns."""
        return [*dict.fromkeys(source.body for source in self.sources or ()), *self.computed]

    def batch(self, values: Sequence[Any], held: Batch | None = None) -> Batch:
        """The share as a batch, on the device of `held`. `values`: of its references; `held`: what the rank has."""
        if self.sources is not None:
            held = self._packed([value for value in values if isinstance(value, Body)])
        assert held is not None
        columns = {name: torch.from_numpy(column.copy()) for name, column in self.columns.items()}
        if (counts := columns.pop("counts", None)) is not None:
            columns |= {n: columns[n].repeat_interleave(counts) for n in OF_TOKENS if n in columns}
        given: dict[str, Any] = {name: column.to(held.ids.device) for name, column in columns.items()}
        batch = replace(held, **given)
        if self.sources is not None and self.computed:
            batch = with_computed(batch, values[-len(self.computed) :])
        if self.own == batch.num_sequences:
            return batch
        return batch.select(range(self.own)) if self.own else batch.share([])

    def _packed(self, bodies: Sequence[Body]) -> Batch:
        references = dict.fromkeys(source.body for source in self.sources or ())
        ledgers = {own: body.tokens() for own, body in zip(references, bodies, strict=True)}
        return pack_ledgers([ledgers[source.body][source.number] for source in self.sources or ()], self.version)


def computed_columns(batch: Batch, before: Batch, wanted: Collection[str] = ()) -> Columns:
    """The columns of `batch` that `before` had not, and those `wanted`; with the keys and bounds of its sequences."""
    names = {"key", "cu_seqlens", "teacher_logprobs", *wanted, *(batch.columns.keys() - before.columns.keys())}
    return {name: batch.columns[name].cpu().numpy() for name in names if name in batch.columns}


def with_computed(batch: Batch, parts: Sequence[Columns]) -> Batch:
    """The batch, which has tokens, with the columns [T, ...] that ranks computed for its sequences."""
    spans = {key: (part, start, end) for part in parts for key, start, end in _spans(part)}
    mine = [spans[key] for key in batch.keys]
    names = set.intersection(*(part.keys() - {"key", "cu_seqlens"} for part in parts))
    found = {n: np.concatenate([part[n][start:end] for part, start, end in mine]) for n in names}
    given: dict[str, Any] = {name: torch.from_numpy(column).to(batch.ids.device) for name, column in found.items()}
    return replace(batch, **given)


def _spans(part: Columns) -> Iterator[tuple[int, int, int]]:
    """(key, first token, the one after its last) of each sequence."""
    bounds = part["cu_seqlens"].tolist()
    yield from zip(part["key"].tolist(), bounds[:-1], bounds[1:], strict=True)
