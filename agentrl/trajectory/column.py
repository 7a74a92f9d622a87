"""Columns of numbers that grow, one entry a token: a list to read, an array in memory.

Invariants: an entry takes 1, 4 or 8 bytes, and in `Runs` a run of equal entries takes 5 or 8; a slice is a list, and so
are a sum and a copy, which no longer change with the column.
"""

from array import array
from bisect import bisect_right
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
        """The column itself as an array of its type: read only, and while it lives the column cannot grow."""
        view = np.asarray(self._data)
        view.flags.writeable = False
        return view

    def repeat(self, value: T, count: int) -> None:
        """Append `count` equal entries."""
        self._data.extend(array(self._data.typecode, (value,)) * count)

    def extend(self, values: Iterable[T]) -> None:
        """Append entries: all, or none where one is no number of the column's type."""
        self._data.extend(self._converted(values))

    def insert(self, index: int, value: T) -> None:
        self[index:index] = [value]

    def copy(self) -> list[T]:
        """The entries as a list."""
        return self._entries().tolist()

    def snapshot(self, end: int | None = None) -> "Column[T]":
        """The entries up to `end` as a column that does not change with this one: a copy of memory."""
        taken: Column[T] = Column(self._data.typecode)
        taken._data = self._entries()[:end]
        return taken

    def count(self, value: Any) -> int:
        return self._data.count(value)

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries())

    def __contains__(self, value: object) -> bool:
        return value in self._data

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._entries()[index].tolist() if isinstance(index, slice) else self._data[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        entries = self._entries()
        entries[index] = array(self._data.typecode, list(value)) if isinstance(index, slice) else value
        self._store(entries)

    def __delitem__(self, index: int | slice) -> None:
        entries = self._entries()
        del entries[index]
        self._store(entries)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Column):
            return self._entries() == other._entries()
        return self.copy() == other if isinstance(other, list) else NotImplemented

    def __add__(self, other: Sequence[T]) -> list[T]:
        return self.copy() + list(other)

    def __radd__(self, other: Sequence[T]) -> list[T]:
        return list(other) + self.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """A copy in int64 or float64, as NumPy reads a list."""
        usual = np.float64 if self._data.typecode == FLOAT else np.int64
        return np.array(self._entries(), dtype=dtype or usual)

    def __repr__(self) -> str:
        return repr(self.copy())

    def _entries(self) -> "array[Any]":
        """All of them, one after the other."""
        return self._data

    def _store(self, entries: "array[Any]") -> None:
        """Have these entries in place of all."""
        self._data = entries

    def _converted(self, values: Iterable[T]) -> "array[Any]":
        """In the column's type."""
        if isinstance(values, Column) and values._data.typecode == self._data.typecode:
            return values._entries()
        converted: array[Any] = array(self._data.typecode)
        converted.fromlist(values if type(values) is list else list(values))
        return converted


class Runs(Column[int]):
    """A column whose entries seldom change from one to the next: a run of equal ones is stored once."""

    __slots__ = ("_ends",)

    def __init__(self, kind: str, values: Iterable[int] | None = None) -> None:
        self._ends: array[int] = array(INT)
        """Where each run ends; `_data` has their values."""
        super().__init__(kind, values)

    def numpy(self) -> NDArray[Any]:
        """The entries as an array of the column's type, read only: a copy."""
        entries = np.repeat(np.asarray(self._data), np.diff(np.asarray(self._ends), prepend=0))
        entries.flags.writeable = False
        return entries

    def repeat(self, value: int, count: int) -> None:
        if count <= 0:
            return
        end = len(self) + count
        if self._data and self._data[-1] == value:
            self._ends[-1] = end
        else:
            self._data.append(value)
            self._ends.append(end)

    def extend(self, values: Iterable[int]) -> None:
        data, ends = in_runs(self._converted(values))
        start = 0
        for value, end in zip(data, ends, strict=True):
            self.repeat(value, end - start)
            start = end

    def count(self, value: Any) -> int:
        starts = [0, *self._ends[:-1]] if self._ends else []
        runs = zip(self._data, starts, self._ends, strict=True)
        return sum(end - start for own, start, end in runs if own == value)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return super().__getitem__(index)
        return self._data[bisect_right(self._ends, range(len(self))[index])]

    def _entries(self) -> "array[Any]":
        return array(self._data.typecode, self.numpy().tobytes())

    def _store(self, entries: "array[Any]") -> None:
        self._data, self._ends = in_runs(entries)


def in_runs(entries: "array[Any]") -> "tuple[array[Any], array[int]]":
    """(the value of each run of equal entries, where it ends)."""
    column = np.asarray(entries)
    ends = np.append(np.flatnonzero(column[1:] != column[:-1]) + 1, column.size) if column.size else np.empty(0, int)
    return array(entries.typecode, column[ends - 1].tobytes()), array(INT, ends.astype(np.int32).tobytes())
