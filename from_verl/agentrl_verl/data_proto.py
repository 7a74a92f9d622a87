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


def object_array(values: Sequence[Any]) -> Any:
    """An array [B] of Python objects, lists and dicts among them."""
    array = np.empty(len(values), dtype=object)
    array[:] = list(values)
    return array
