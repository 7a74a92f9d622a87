"""Rows that are created on access.

Invariant: the uids of a run's rows differ, also where a file, a source or a row is given twice: a uid names a group.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
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


class NamedRows(LazyRows):
    """Rows under other uids."""

    def __init__(self, rows: Sequence[Row], uids: Sequence[str]) -> None:
        self.rows, self.uids = rows, uids

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, place: int) -> Row:
        row, uid = self.rows[place], self.uids[place]
        return row if row.uid == uid else replace(row, uid=uid)


def distinct_rows(parts: Sequence[Sequence[Row]]) -> list[Sequence[Row]]:
    """The same rows, all with different uids."""
    uids = [row.uid for part in parts for row in part]
    names = iter(distinct(uids))
    return [NamedRows(part, list(islice(names, len(part)))) for part in parts]


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
