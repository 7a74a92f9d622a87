"""Rows that a function makes, instead of a file: `data.train_files=tasks:FOLDER` and the like.

Invariant: rows of files come first, in the order of the files, then those of each source in the order of the sources.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.config.schema import Data
from agentrl.core.contracts import keywords_of
from agentrl.core.errors import UserError
from agentrl.core.points import ROW_SOURCES
from agentrl.core.row_sources import split_source
from agentrl.data.lazy import distinct_rows
from agentrl.trajectory.row import Row


def split_files(files: Any) -> tuple[Any, list[str]]:
    """(files, sources) among `files`, a path or a list of paths; None for no files."""
    values: list[Any] = [files] if isinstance(files, str | Path) else list(files or [])
    sources = [value for value in values if split_source(value)]
    named = [value for value in values if value not in sources]
    return (named or None, sources) if sources else (files, [])


def all_source_rows(sources: Sequence[str], data: Data, what: str) -> list[Sequence[Row]]:
    """The rows of each source; two may have rows in common. Raises UserError."""
    return distinct_rows([source_rows(source, data, what) for source in sources])


def source_rows(source: str, data: Data, what: str) -> Sequence[Row]:
    """The rows of `NAME:ARGUMENT`, which the key `what` names. Raises UserError."""
    name, argument = split_source(source) or (source, "")
    offered = {"data": data}
    given = {key: offered[key] for key in keywords_of(ROW_SOURCES.get(name, what))}
    rows: Sequence[Row] = ROW_SOURCES.make(name, what, argument, **given)
    if not len(rows):
        raise UserError(f"{what}: {source} has no rows")
    return rows


def from_scored_source(data: Data) -> bool:
    """Whether rows come from a source whose rollouts set their reward."""
    sources = [*split_files(data.train_files)[1], *split_files(data.val_files)[1]]
    names = [(split_source(source) or (source, ""))[0] for source in sources]
    return any(ROW_SOURCES.mark(name, "scored", "data.train_files") for name in names)
