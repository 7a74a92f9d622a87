"""The batch that reward managers written for verl read: its columns and nothing of its machinery."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch


@dataclass
class DataProtoItem:
    """One sample of a batch."""

    batch: dict[str, torch.Tensor] = field(default_factory=dict)
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)


@dataclass
class DataProto:
    """Columns of equal length: `batch` tensors [B, ...], `non_tensor_batch` object arrays [B]."""

    batch: dict[str, torch.Tensor] = field(default_factory=dict)
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        columns = [*self.batch.values(), *self.non_tensor_batch.values()]
        return len(columns[0]) if columns else 0

    def __getitem__(self, index: Any) -> Any:
        """An int gives a DataProtoItem, all else a DataProto."""
        kind = DataProtoItem if isinstance(index, int | np.integer) else DataProto
        tensors = {name: column[index] for name, column in self.batch.items()}
        others = {name: column[index] for name, column in self.non_tensor_batch.items()}
        return kind(tensors, others, self.meta_info)

    def __iter__(self) -> Iterator[DataProtoItem]:
        return (self[i] for i in range(len(self)))

    @classmethod
    def from_dict(
        cls,
        tensors: Mapping[str, torch.Tensor] | None = None,
        non_tensors: Mapping[str, Sequence[Any]] | None = None,
        meta_info: Mapping[str, Any] | None = None,
    ) -> "DataProto":
        """Of columns; those that are no tensors become object arrays."""
        arrays = {name: object_array(values) for name, values in (non_tensors or {}).items()}
        return cls(dict(tensors or {}), arrays, dict(meta_info or {}))

    def select(self, batch_keys: Any = None, non_tensor_batch_keys: Any = None, **_: Any) -> "DataProto":
        """Some of the columns; None: all."""
        tensors = {key: self.batch[key] for key in (self.batch if batch_keys is None else batch_keys)}
        others = self.non_tensor_batch if non_tensor_batch_keys is None else non_tensor_batch_keys
        return DataProto(tensors, {key: self.non_tensor_batch[key] for key in others}, self.meta_info)

    def union(self, other: "DataProto") -> "DataProto":
        """This batch with the other's columns too."""
        self.batch |= other.batch
        self.non_tensor_batch |= other.non_tensor_batch
        self.meta_info |= other.meta_info
        return self

    @staticmethod
    def concat(data: Sequence["DataProto"]) -> "DataProto":
        """The rows of all, one batch after another."""
        tensors = {key: torch.cat([each.batch[key] for each in data]) for key in data[0].batch}
        others = {
            key: np.concatenate([each.non_tensor_batch[key] for each in data]) for key in data[0].non_tensor_batch
        }
        return DataProto(tensors, others, data[0].meta_info)

    def chunk(self, chunks: int) -> list["DataProto"]:
        """As many batches of equal length, or nearly."""
        size = -(-len(self) // chunks)
        return [self[at : at + size] for at in range(0, len(self), size)]


class DataProtoFuture:
    """A batch that `get()` gives."""

    def __init__(self, collect_fn: Any = None, futures: Any = (), dispatch_fn: Any = None) -> None:
        self.collect_fn, self.futures, self.dispatch_fn = collect_fn, futures, dispatch_fn

    def get(self) -> DataProto:
        """Wait for the parts and put them together."""
        parts = [future.result() if hasattr(future, "result") else future for future in self.futures]
        made = self.collect_fn(parts) if self.collect_fn else DataProto.concat(parts)
        return made if self.dispatch_fn is None else self.dispatch_fn(made)


def collate_fn(x: Sequence[DataProtoItem]) -> DataProto:
    """The items as one batch."""
    tensors = {key: torch.stack([item.batch[key] for item in x]) for key in x[0].batch}
    others = {key: object_array([item.non_tensor_batch[key] for item in x]) for key in x[0].non_tensor_batch}
    return DataProto(tensors, others, x[0].meta_info)


def pad_dataproto_to_divisor(data: DataProto, size_divisor: int) -> tuple[DataProto, int]:
    """The batch with its first rows repeated until its length is a multiple, and how many were added."""
    missing = -len(data) % size_divisor
    rows = [*range(len(data)), *(i % len(data) for i in range(missing))]
    return (data[rows] if missing else data), missing


def unpad_dataproto(data: DataProto, pad_size: int) -> DataProto:
    """The batch without its last `pad_size` rows."""
    return data[: len(data) - pad_size] if pad_size else data


def object_array(values: Sequence[Any]) -> Any:
    """An array [B] of Python objects, lists and dicts among them."""
    array = np.empty(len(values), dtype=object)
    array[:] = list(values)
    return array
