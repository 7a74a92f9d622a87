"""Where the tokens and texts of finished trajectories are: in this process, or where they were made.

Invariant: the process that steers a run holds the `Outline` of a trajectory; its row, of which it has one, and its body
do not travel with it. A body is fetched where it is read.
"""

import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np

from agentrl.core.errors import InfraError
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.outline import LedgerOutline
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import ToolCallRecord, Trajectory

TEXTS = ("messages", "schemas", "tool_calls")
"""Fields of a trajectory that grow with its tokens, besides its ledgers."""
ABSENT = ("row", "container", "advantages", "ledgers", *TEXTS)


@dataclass(frozen=True)
class Body:
    """The parts of a trajectory that grow with its tokens, pickled."""

    ledgers: bytes
    texts: bytes
    """They may hold objects of the user's: a process that needs tokens does not load them."""

    @classmethod
    def of(cls, trajectory: Trajectory, *, texts: bool = True) -> "Body":
        """The body of a trajectory. Raises an error for an object that cannot be pickled."""
        named = {name: getattr(trajectory, name) for name in TEXTS} if texts else {}
        return cls(pickle.dumps(trajectory.ledgers, 5), pickle.dumps(named, 5))

    def tokens(self) -> list[Ledger]:
        """The ledgers."""
        return pickle.loads(self.ledgers)


def _values(trajectory: Trajectory) -> bytes:
    """The fields of a trajectory that travel with its outline, pickled."""
    return pickle.dumps({f.name: getattr(trajectory, f.name) for f in fields(Trajectory) if f.name not in ABSENT}, 5)


class Store(Protocol):
    """Holds values of any process of a run. A value lives as long as a reference to it."""

    def put(self, value: Any) -> Any:
        """Store a value; returns the reference."""

    def get(self, references: Sequence[Any]) -> list[Any]:
        """The values of references."""


@dataclass(frozen=True)
class Outline:
    """A trajectory without its row and body, as a few bytes a turn."""

    values: bytes
    """Its other fields, pickled."""
    ledgers: list[LedgerOutline]
    calls: list[ToolCallRecord]
    """Without arguments and responses."""
    body: Any
    """The reference of its body."""

    @classmethod
    def of(cls, trajectory: Trajectory, put: Callable[[Body], Any]) -> "Outline":
        """The outline of a finished trajectory; `put` stores its body, and gives the reference. Raises InfraError for
        one with an object that cannot be pickled."""
        try:
            values, body = _values(trajectory), Body.of(trajectory)
        except Exception as error:  # any object may be in a message or in `extra`, with any __reduce__
            raise InfraError(f"trajectory {trajectory.key} cannot leave its rollout worker: {error}") from error
        calls = [replace(call, arguments=None, response="", metrics={}) for call in trajectory.tool_calls]
        return cls(values, [LedgerOutline.of(each) for each in trajectory.ledgers], calls, put(body))


class Stored(Trajectory):
    """A trajectory whose body is in a store, and comes from there when a part of it is read."""

    def __init__(self, outline: Outline, row: Row, store: Store, advantages: Sequence[Any] = ()) -> None:
        self.outline, self.store, self.row, self.container = outline, store, row, None
        self.advantages = list(advantages)
        self.__dict__ |= pickle.loads(outline.values)

    def __getattr__(self, name: str) -> Any:
        if name not in ("ledgers", *TEXTS):
            raise AttributeError(f"a trajectory has no {name!r}")
        body: Body = self.store.get([self.outline.body])[0]
        self.__dict__ |= {"ledgers": body.tokens()} if name == "ledgers" else pickle.loads(body.texts)
        return self.__dict__[name]

    @property  # columns of tokens are made where they are read
    def advantages(self) -> list[Any]:
        """As in every trajectory."""
        return [np.asarray(column) for column in self._advantages]

    @advantages.setter
    def advantages(self, columns: list[Any]) -> None:
        self._advantages = columns

    @property
    def parts(self) -> tuple[Outline, Row, Store, list[Any]]:
        """It is made of these."""
        return replace(self.outline, values=_values(self)), self.row, self.store, self._advantages

    def __reduce__(self) -> Any:
        """A copy has its body."""
        return Trajectory, tuple(getattr(self, f.name) for f in fields(Trajectory))

    @property
    def outlines(self) -> list[LedgerOutline]:
        """The outlines of its ledgers."""
        return self.outline.ledgers

    @property
    def calls(self) -> list[ToolCallRecord]:
        """Its tool calls without their texts."""
        return self.outline.calls


def stored(trajectory: Trajectory, store: Store) -> Stored:
    """The trajectory with its body in a store."""
    return Stored(Outline.of(trajectory, store.put), trajectory.row, store)


def fetch(trajectories: list[Trajectory]) -> list[Trajectory]:
    """The trajectories, for a time when their store is gone: their bodies are here, as far as they were not lost."""
    with suppress(InfraError):
        for each in trajectories:
            _ = each.ledgers, each.messages
    return trajectories
