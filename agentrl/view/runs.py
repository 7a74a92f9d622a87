"""Finds runs, and the dumps of each.

A run is a folder with metrics.jsonl, status.json or dumps, a folder of such folders, or a single dump.

Invariant: the name of a run depends on its path and on the paths that were asked for, never on the other runs: an
address that names a run leads to the same one after new runs were found.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import yaml

from agentrl.core.errors import UserError
from agentrl.core.foreign import read_yaml
from agentrl.core.inside import read_inside
from agentrl.tracking.dumps.atif import read_atif
from agentrl.tracking.dumps.index import read_index, read_lines
from agentrl.tracking.dumps.records import Record
from agentrl.tracking.loggers import CONFIG_FILE, METRICS_FILE
from agentrl.tracking.status import STATUS_FILE
from agentrl.view.curves import Curves
from agentrl.view.table import Table

FOLDERS = {"rollout": ("rollout_data_dir", "rollouts"), "validation": ("validation_data_dir", "validation")}
"""Split -> (key of its folder, path within a run that was moved)."""
MAX_DEPTH = 3


@dataclass
class Run:
    """One run, with what was read of it. Folders are listed each time: the run may still write."""

    path: Path
    name: str
    only: Path | None = None
    """A dump, or a folder of dumps, which is then all there is."""

    @cached_property
    def curves(self) -> Curves:
        """Its metrics."""
        return Curves(self.path / METRICS_FILE)

    @cached_property
    def tables(self) -> dict[str, Table]:
        """Its trajectories, by split."""
        return {split: Table(partial(self.dumps, split)) for split in FOLDERS}

    def dumps(self, split: str) -> dict[int, Path]:
        """The dumps of a split by step, in order."""
        if self.only is not None and split != "rollout":
            return {}
        if self.only is not None and self.only.is_file():
            return {int(self.only.stem) if self.only.stem.isdecimal() else 0: self.only}
        files = (self.only or self._folder(split)).glob("*.jsonl")
        return dict(sorted((int(file.stem), file) for file in files if file.stem.isdecimal()))

    def settings(self) -> dict[str, object]:
        """The configuration that the run started with, by dotted key; empty where it has none."""
        return dict(_flat("", _config(self.path)))

    def _folder(self, split: str) -> Path:
        """The configured path is relative to where the run was started; a run that was copied or set aside has it
        inside, and nothing elsewhere if it was inside of the folder that the run had."""
        key, name = FOLDERS[split]
        named = self.path / name
        trainer = {} if named.is_dir() else _config(self.path).get("trainer")
        if not isinstance(trainer, dict) or not trainer.get(key):
            return named
        configured, home = Path(str(trainer[key])), str(trainer.get("default_local_dir") or "")
        if home and configured.is_relative_to(home):
            return self.path / configured.relative_to(home)
        moved = self.path / configured.name
        return moved if moved.is_dir() else configured


def find_runs(paths: Sequence[str]) -> list[Run]:
    """The runs at or below each path, by name. Raises UserError where there is none."""
    found: dict[Path, Run] = {}
    for label, path in zip(_labels(paths), map(Path, paths), strict=True):
        here = _at(path, MAX_DEPTH)
        if not here:
            raise UserError(
                f"{path}: {'no run in there' if path.exists() else 'no such folder'}; name a run's folder "
                "(with metrics.jsonl), a folder of runs, or a dump of rollout_data_dir"
            )
        for run in here:
            below = (run.only or run.path).relative_to(path)
            run.name = "/".join((*label, *below.parts)) or path.resolve().name
            found.setdefault((run.only or run.path).resolve(), run)
    return list(found.values())


def dumped(runs: Iterable[Run]) -> Iterator[Path]:
    """All dumps of runs."""
    return (file for run in runs for split in FOLDERS for file in run.dumps(split).values())


def find_trajectory(address: str) -> Record:
    """The record that RUN/KEY names, or that a file of ATIF has. Raises UserError."""
    if address.endswith(".json") and Path(address).is_file():
        return read_atif(Path(address))
    here = next(folder for folder in (Path(address), *Path(address).parents) if folder.exists())
    key = address.removeprefix(str(here)).strip("/")
    for file in dumped(find_runs([str(here)])):
        index = read_index(file)
        if key in index.columns["key"]:
            return next(iter(read_lines(file, index, [index.columns["key"].index(key)])))
    raise UserError(f"{address}: no file, and {here} has no trajectory {key!r}; `agentrl view {here}` shows their keys")


def differing(settings: Sequence[dict[str, object]]) -> list[str]:
    """The keys in which runs differ, in order; a value that follows from the name or the folder of its run is equal."""
    present = [one for one in settings if one]
    keys = dict.fromkeys(key for one in present for key in one)
    differs = (key for key in keys if len({repr(one.get(key)) for one in present}) > 1)
    return sorted(key for key in differs if len({_relative(one, key) for one in present}) > 1)


def _relative(settings: dict[str, object], key: str) -> str:
    """A value without the folder and the name of its run."""
    value, name = str(settings.get(key)), settings.get("trainer.experiment_name")
    for home in (settings.get("trainer.default_local_dir"), settings.get("trainer.output_dir")):
        if home and Path(value).is_relative_to(str(home)):
            return str(Path("<run>") / Path(value).relative_to(str(home)))
    return "/".join("<run>" if part == name else part for part in value.split("/"))


def _labels(paths: Sequence[str]) -> list[tuple[str, ...]]:
    """The first part of the names of the runs below each path: none for one path, else its last part if that tells."""
    last = [Path(path).resolve().name for path in paths]
    if len(paths) == 1:
        return [()]
    return [(name,) if last.count(name) == 1 else (str(path),) for name, path in zip(last, paths, strict=True)]


def _at(path: Path, depth: int) -> list[Run]:
    has_dumps = any(_is_dump_folder(path / name) for _, name in FOLDERS.values())
    if path.is_dir() and (has_dumps or any((path / name).exists() for name in (METRICS_FILE, STATUS_FILE))):
        return [Run(path, path.name)]
    if path.is_file() or _is_dump_folder(path):
        return [Run(path, path.name, only=path)]
    if not path.is_dir() or not depth:
        return []
    children = [child for child in sorted(path.iterdir()) if child.is_dir() and not child.name.startswith(".")]
    return [run for child in children for run in _at(child, depth - 1)]


def _is_dump_folder(path: Path) -> bool:
    return any(file.stem.isdecimal() for file in path.glob("*.jsonl"))


def _config(folder: Path) -> dict[str, Any]:
    with suppress(OSError):
        return _read(folder, (folder / CONFIG_FILE).stat().st_mtime_ns)
    return {}


@lru_cache(maxsize=1000)
def _read(folder: Path, written: int) -> dict[str, Any]:
    with suppress(OSError, UserError, yaml.YAMLError, TypeError, ValueError):
        return dict(read_yaml(read_inside(folder / CONFIG_FILE, folder)))
    return {}


def _flat(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    """`{a: {b: 1}}` as a.b: 1; an empty mapping is a value."""
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), below)
    elif prefix:
        yield prefix, value
