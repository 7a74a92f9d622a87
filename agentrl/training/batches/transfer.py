"""Packs the columns of a share for its ranks: only those that they do not have.

Invariants:
- every number arrives bit for bit;
- a column that both sides have is recognised by identity: code between two transfers replaces columns, and changes none
  in place.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.training.batches.batch import Batch

Columns = dict[str, Any]
"""By name, packed."""


@dataclass(frozen=True)
class Narrow:
    """Whole numbers in 4 bytes."""

    values: NDArray[np.int32]

    def tensor(self) -> Tensor:
        return torch.from_numpy(self.values.astype(np.int64))


@dataclass(frozen=True)
class Bits:
    """Truth values, eight to a byte."""

    values: NDArray[np.uint8]
    count: int

    def tensor(self) -> Tensor:
        return torch.from_numpy(np.unpackbits(self.values, count=self.count).astype(np.bool_))


@dataclass(frozen=True)
class Sparse:
    """Float32 numbers of which many are 0: those that are not, and where they are."""

    values: NDArray[np.float32]
    where: Bits

    def tensor(self) -> Tensor:
        dense, where = np.zeros(self.where.count, np.float32), self.where.tensor().numpy()
        dense[where] = self.values
        return torch.from_numpy(dense)


@dataclass(frozen=True)
class Plain:
    """Any other tensor."""

    values: NDArray[Any]

    def tensor(self) -> Tensor:
        return torch.from_numpy(self.values.copy())  # the object store's memory cannot be written


def share_columns(batch: Batch, sequences: Sequence[int], names: Collection[str] | None = None) -> Columns:
    """The share of these sequences: all columns, or those of `names`."""
    if names is not None:
        return {name: packed(column) for name, column in batch.columns_of(sequences, names).items()}
    share = batch.share(sequences)
    return {f.name: packed(getattr(share, f.name)) for f in fields(share)}


def changed_columns(batch: Batch, held: Batch) -> list[str]:
    """The columns that are not those of `held`."""
    mine, theirs = vars(batch), vars(held)
    return [f.name for f in fields(batch) if mine[f.name] is not theirs[f.name]]


def of_columns(columns: Mapping[str, Any], held: Batch | None = None) -> Batch:
    """The batch of the columns, and of the columns that only `held` has, on its device."""
    device = torch.device("cpu") if held is None else held.ids.device
    found = {
        name: column.tensor().to(device) if hasattr(column, "tensor") else column for name, column in columns.items()
    }
    return Batch(**found) if held is None else replace(held, **found)


def computed_columns(batch: Batch, before: Batch) -> Columns:
    """The columns of `batch` that `before` had not."""
    return {name: packed(column) for name, column in batch.columns.items() if name not in before.columns}


def with_columns(batch: Batch, shares: Sequence[Sequence[int]], parts: Sequence[Columns]) -> Batch:
    """The batch with the columns [T, ...] that the ranks computed: `parts`, one for each of `shares`."""
    found: dict[str, Any] = {}
    for sequences, part in zip(shares, parts, strict=True):
        for name in part if sequences else ():
            values = part[name].tensor()
            whole = found.setdefault(name, values.new_zeros(batch.num_tokens, *values.shape[1:]))
            whole[batch.tokens_of(sequences)] = values
    return replace(batch, **found)


def packed(column: Any) -> Any:
    """A tensor in few bytes; anything else as it is."""
    if not isinstance(column, Tensor):
        return column
    values = column.cpu().numpy()
    if values.dtype == np.bool_:
        return Bits(np.packbits(values), values.size)
    if values.dtype == np.int64 and (not values.size or np.abs(values).max() < 2**31):
        return Narrow(values.astype(np.int32))
    if values.dtype == np.float32 and values.ndim == 1:
        return _sparse(values)
    return Plain(values)


def _sparse(values: NDArray[np.float32]) -> Sparse | Plain:
    """The smaller of two forms. Compared as bits: -0.0 is kept."""
    there = values.view(np.int32) != 0
    if 4 * int(np.count_nonzero(there)) + values.size // 8 >= values.nbytes:
        return Plain(values)
    return Sparse(values[there], Bits(np.packbits(there), values.size))
