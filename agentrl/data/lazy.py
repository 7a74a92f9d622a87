"""Rows that are created on access."""

from abc import abstractmethod
from collections.abc import Sequence
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
