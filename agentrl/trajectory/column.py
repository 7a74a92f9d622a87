"""A column of numbers that grows, one entry a token: a list to read, an array in memory.

Invariants: an entry takes 1, 4 or 8 bytes; a slice is a list, and so are a sum and a copy, which no longer change with
the column.
"""

from array import array
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", int, float)

BYTE, INT, FLOAT = "b", "i", "d"
"""Types of entries: whole numbers of 1 and of 4 bytes, numbers of 8 bytes."""


class Column(MutableSequence[T], Generic[T]):
    """Behaves as a list of numbers where lists are sliced, compared and joined."""

    __slots__ = ("_data",)
    __hash__ = None  # type: ignore[assignment]  # it can change, as a list can

    def __init__(self, kind: str, values: Iterable[T] | None = None) -> None:
        self._data: array[Any] = array(kind)
        if values is not None:
            self.extend(values)

    def numpy(self) -> NDArray[Any]:
        """The column itself as an array of its own type: read only, and while it lives the column cannot grow."""
        view = np.asarray(self._data)
        view.flags.writeable = False
        return view

    def repeat(self, value: T, count: int) -> None:
        """Append `count` equal entries."""
        self._data.extend(array(self._data.typecode, (value,)) * count)

    def extend(self, values: Iterable[T]) -> None:
        """Append entries: all, or none where one is no number of the column's type."""
        if isinstance(values, Column) and values._data.typecode == self._data.typecode:
            self._data.extend(values._data)
        else:
            self._data.fromlist(values if type(values) is list else list(values))

    def insert(self, index: int, value: T) -> None:
        self._data.insert(index, value)

    def copy(self) -> list[T]:
        """The entries as a list."""
        return self._data.tolist()

    def snapshot(self, end: int | None = None) -> "Column[T]":
        """The entries up to `end` as a column that does not change with this one: a copy of memory."""
        taken: Column[T] = Column(self._data.typecode)
        taken._data = self._data[:end]
        return taken

    def count(self, value: Any) -> int:
        return self._data.count(value)

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[T]:
        return iter(self._data)

    def __contains__(self, value: object) -> bool:
        return value in self._data

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._data[index].tolist() if isinstance(index, slice) else self._data[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._data[index] = array(self._data.typecode, list(value)) if isinstance(index, slice) else value

    def __delitem__(self, index: int | slice) -> None:
        del self._data[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Column):
            return self._data == other._data
        return self.copy() == other if isinstance(other, list) else NotImplemented

    def __add__(self, other: Sequence[T]) -> list[T]:
        return self.copy() + list(other)

    def __radd__(self, other: Sequence[T]) -> list[T]:
        return list(other) + self.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """As NumPy reads a list: a copy in int64 or float64."""
        usual = np.float64 if self._data.typecode == FLOAT else np.int64
        return np.array(self._data, dtype=dtype or usual)

    def __repr__(self) -> str:
        return repr(self.copy())
