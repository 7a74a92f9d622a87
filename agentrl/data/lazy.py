"""Rows that are created on access.

Invariant: the uids of a run's rows differ, also where a file, a source or a row is given twice: a uid names a group.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import overload

from agentrl.trajectory.row import Row


class LazyRows(Sequence[Row]):
    """A sequence with a length that creates each row on access."""

    @abstractmethod
    def row(self, place: int) -> Row:
        """The row at `place`, which is from 0 to len - 1."""

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        places = range(len(self))[index]
        return self.row(places) if isinstance(places, int) else [self.row(place) for place in places]


class RenamedRows(LazyRows):
    """Rows with something after their uids."""

    def __init__(self, rows: Sequence[Row], suffix: str) -> None:
        self.rows, self.suffix = rows, suffix

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, place: int) -> Row:
        row = self.rows[place]
        return replace(row, uid=f"{row.uid}{self.suffix}")


def distinct(names: Iterable[str]) -> list[str]:
    """The names, with #2, #3, ... after one that came before."""
    seen = Counter[str]()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return found
