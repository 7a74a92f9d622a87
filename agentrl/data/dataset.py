"""Loads the rows of the `data` section: from files, with a user's dataset class, or from row sources.

A class of the user's own is called as verl calls it, by keyword: data_files, tokenizer, config, and processor where it
asks for one; `config` answers both to `config.key` and to `config.get("key")`. Its items are mappings in the layout of
a dataset row; `raw_prompt` may stand in for the prompt's column.

Invariant: rows of files come first, in the order of the files, then those of each source in the order of the sources.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.config.derived import with_custom
from agentrl.config.schema import Data
from agentrl.config.schema.data import Rows
from agentrl.core.contracts import keywords_of, require_call
from agentrl.core.errors import UserError, reported_as
from agentrl.core.plugins import load_attribute
from agentrl.core.points import ROW_SOURCES
from agentrl.core.remote_files import in_shared_memory
from agentrl.core.row_sources import split_source
from agentrl.data.files import first_record, paths
from agentrl.data.lazy import distinct_rows, joined
from agentrl.data.rows import RecordRows, file_rows, make_row, read_rows
from agentrl.trajectory.row import Row

CUSTOM_SECTION = "data.custom_cls"


def load_dataset(
    data: Data, files: Any, tokenizer: Any, *, processor: Any = None, what: str = "data.train_files"
) -> Sequence[Row]:
    """The rows of `files` (a path or a source, or a list of them); `what` names the config key they come from.

    `tokenizer` and transformers' `processor` are for a class of the user's own.

    Raises UserError in one line on missing files, wrong columns, or a class that cannot be used.
    """
    return joined(_parts(files, data, what, lambda named: [_file_rows(data, named, tokenizer, processor, what)]))


def plain_parts(data: Data, files: Any, what: str) -> list[Sequence[Row]]:
    """The rows of `files`, without a dataset class: those of the files, then those of each source. Raises UserError."""
    return _parts(files, data, what, lambda named: file_rows(named, data, what))


def _parts(files: Any, data: Data, what: str, read: Callable[[Any], Iterable[Sequence[Row]]]) -> list[Sequence[Row]]:
    """The rows of the files, by `read`, then those of each source; two sources may have rows in common."""
    named, sources = split_files(files)
    parts = read(named) if named or not sources else []
    return [*parts, *distinct_rows([source_rows(source, data, what) for source in sources])]


def first_row(data: Data) -> Row | None:
    """The first row of the run, without reading the others; None where it cannot be read: reading all rows raises the
    error."""
    files = next(filter(None, data.files().values()), None)
    if not files or data.custom_cls.path:
        return None
    with suppress(UserError, OSError):
        named, sources = split_files(files)
        if not named:
            return source_rows(sources[0], data, "data.train_files")[0]
        (file,) = paths([named] if isinstance(named, str | Path) else list(named)[:1], "data.train_files")
        record = first_record(file)
        if record is not None:
            return make_row(record, f"{file.stem}:1", data)
    return None


def scored_by_rollout(data: Data) -> bool:
    """Whether the rollout itself sets the reward of rows of the run."""
    return from_scored_source(data) or ((row := first_row(data)) is not None and row.scores_itself)


def _file_rows(data: Data, files: Any, tokenizer: Any, processor: Any, what: str) -> Sequence[Row]:
    if data.use_shm:
        files = [in_shared_memory(str(file), "data.use_shm") for file in paths(files, what)]
        files = files if len(files) > 1 else files[0]
    if data.custom_cls.path is None:
        return read_rows(files, data, what=what)
    cls = load_attribute(data.custom_cls.path, data.custom_cls.name, what=CUSTOM_SECTION, section=True)
    local = [str(path) for path in paths(files, what)]
    given = {"data_files": local[0] if isinstance(files, str) else local, "tokenizer": tokenizer}
    dataset = custom_dataset(cls, data, given, {"processor": processor})
    return CustomRows(dataset, type(dataset).__name__, data)


class CustomRows(RecordRows):
    """Rows of a user's dataset, created on access."""

    def row(self, index: int) -> Row:
        where = f"{CUSTOM_SECTION}: {self.name}[{index}]"
        with reported_as(where):
            item = self.records[index]
        if not isinstance(item, Mapping):
            raise UserError(f"{where} is a {type(item).__name__}; it must be a mapping")
        data = self.data if self.data.prompt_key in item else replace(self.data, prompt_key="raw_prompt")
        if data.prompt_key not in item:
            raise UserError(f"{where} has no {self.data.prompt_key!r}; it has {', '.join(item)}")
        return make_row(item, f"{self.name}:{index + 1}", data)


def custom_dataset(cls: Any, data: Rows, given: Mapping[str, Any], offered: Mapping[str, Any]) -> Any:
    """A dataset of the user's class `cls`, made with the keywords `given`, `config`, and those of `offered` that it
    has. Raises UserError."""
    from omegaconf import OmegaConf

    arguments = {**given, "config": OmegaConf.create(with_custom(data))}
    accepted = inspect.signature(cls).parameters
    arguments |= {name: value for name, value in offered.items() if name in accepted}
    require_call(cls, ", ".join(f"{name}=" for name in arguments), f"{CUSTOM_SECTION}: {cls.__name__}")
    dataset = cls(**arguments)
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UserError(f"{CUSTOM_SECTION}: {cls.__name__} needs __len__ and __getitem__, as a torch Dataset has")
    return dataset


def split_files(files: Any) -> tuple[Any, list[str]]:
    """(files, sources) among `files`, a path or a list of paths; None for no files."""
    values: list[Any] = [files] if isinstance(files, str | Path) else list(files or [])
    sources = [value for value in values if split_source(value)]
    named = [value for value in values if value not in sources]
    return (named or None, sources) if sources else (files, [])


def source_rows(source: str, data: Data, what: str) -> Sequence[Row]:
    """The rows of `NAME:ARGUMENT`, which the key `what` names. Raises UserError."""
    name, argument = split_source(source) or (source, "")
    given = {"data": data} if "data" in keywords_of(ROW_SOURCES.get(name, what)) else {}
    rows: Sequence[Row] = ROW_SOURCES.make(name, what, argument, **given)
    if not len(rows):
        raise UserError(f"{what}: {source} has no rows")
    return rows


def from_scored_source(data: Data) -> bool:
    """Whether rows come from a source whose rollouts set their reward."""
    sources = [source for files in data.files().values() for source in split_files(files)[1]]
    names = [(split_source(source) or (source, ""))[0] for source in sources]
    return any(ROW_SOURCES.mark(name, "scored", "data.train_files") for name in names)
