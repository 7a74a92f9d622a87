"""Rows as Python objects: lists of dicts, data sets of Hugging Face, any iterable.

Invariant: a row's uid is its number, `rows:<number>` from 1, so the same rows give the same uids after a restart; a
`Row` keeps its own uid, numbered where it is given again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.config.schema import Data
from agentrl.core.errors import UserError
from agentrl.data.lazy import distinct_rows
from agentrl.data.rows import DEFAULTS, RecordRows
from agentrl.trajectory.row import Row

DICT_EXAMPLE = '{"prompt": "What is 2 + 3?", "answer": "5"}'


class GivenRows(RecordRows):
    """Rows out of a caller's records."""

    interaction = False
    """Whether rows that name no interaction meet the run's only one."""

    def row(self, index: int) -> Row:
        row = self.records[index]
        if not isinstance(row, Mapping | Row):
            uid = f"{self.name}:{index + 1}"
            raise UserError(f"{uid} is a {type(row).__name__}: pass dicts, such as {DICT_EXAMPLE}")
        row = row if isinstance(row, Row) else super().row(index)
        if self.interaction and row.interaction_kwargs is None:
            return replace(row, extra_info=row.extra_info | {"interaction_kwargs": {"name": None}})
        return row


def given_rows(given: Iterable[Any], *, name: str, data: Data = DEFAULTS, interaction: bool = False) -> Sequence[Row]:
    """The rows of a list, a data set, or whatever else can be iterated. Raises UserError, for the first 100 at once."""
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise UserError(f"{name} is a {type(given).__name__}: pass a list of dicts, such as [{DICT_EXAMPLE}]")
    indexed = hasattr(given, "__len__") and hasattr(given, "__getitem__") and not hasattr(given, "iloc")
    if hasattr(given, "to_dict") and hasattr(given, "iloc"):  # a DataFrame, which iterates over its columns' names
        given = given.to_dict("records")
    records: Any = given if indexed else list(given)
    rows = GivenRows(records, name, data)
    rows.interaction = interaction
    if not len(rows):
        raise UserError(f"{name} is empty: pass a list of dicts, such as [{DICT_EXAMPLE}]")
    for index in range(min(len(rows), 100)):
        rows[index]
    mine = isinstance(records, list | tuple) and any(isinstance(record, Row) for record in records)
    return distinct_rows([rows])[0] if mine else rows
