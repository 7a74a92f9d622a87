"""Sequences of rows, and of records, that are created on access.

Invariant: the uids of a run's rows differ, also where a file, a source or a row is given twice: a uid names a group.
"""

from abc import abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from typing import TypeVar, overload

from agentrl.trajectory.row import Row

T = TypeVar("T")


class Lazy(Sequence[T]):
    """A sequence with a length that creates each item on access."""

    @abstractmethod
    def row(self, index: int) -> T:
        """The item at `index`, which is from 0 to len - 1."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        found = range(len(self))[index]
        return self.row(found) if isinstance(found, int) else [self.row(i) for i in found]


LazyRows = Lazy[Row]


class JoinedRows(LazyRows):
    """The rows of several sequences, one after another."""

    def __init__(self, parts: Sequence[Sequence[Row]]) -> None:
        self.parts = parts
        self.ends = list(accumulate(len(part) for part in parts))

    def __len__(self) -> int:
        return self.ends[-1]

    def row(self, index: int) -> Row:
        part = bisect_right(self.ends, index)
        return self.parts[part][index - (self.ends[part - 1] if part else 0)]


def joined(parts: Sequence[Sequence[Row]]) -> Sequence[Row]:
    """One sequence of them all."""
    return parts[0] if len(parts) == 1 else JoinedRows(parts)


class ChosenRows(LazyRows):
    """The rows at some indices, perhaps under other uids; nothing is copied."""

    def __init__(self, rows: Sequence[Row], indices: Sequence[int], uids: Sequence[str] | None = None) -> None:
        self.rows, self.indices, self.uids = rows, indices, uids

    def __len__(self) -> int:
        return len(self.indices)

    def row(self, index: int) -> Row:
        row = self.rows[self.indices[index]]
        return row if self.uids is None or row.uid == self.uids[index] else replace(row, uid=self.uids[index])


def distinct_rows(parts: Sequence[Sequence[Row]]) -> list[Sequence[Row]]:
    """The parts with different uids for all rows."""
    uids = [row.uid for part in parts for row in part]
    names = iter(distinct(uids))
    return [ChosenRows(part, range(len(part)), list(islice(names, len(part)))) for part in parts]


def distinct(names: Iterable[str]) -> list[str]:
    """The names, with #2, #3, ... after one that came before."""
    taken, count, found = set[str](), Counter[str](), []
    for name in names:
        own = name
        while own in taken:
            count[name] += 1
            own = f"{name}#{count[name] + 1}"
        taken.add(own)
        found.append(own)
    return found
