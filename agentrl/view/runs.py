"""Finds runs, and the dumps of each.

A run is a folder with metrics.jsonl or with dumps, a folder of such folders, or a single dump.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from agentrl.core.errors import UserError
from agentrl.core.foreign import read_yaml
from agentrl.tracking.loggers import CONFIG_FILE, METRICS_FILE

FOLDERS = {"rollout": ("rollout_data_dir", "rollouts"), "validation": ("validation_data_dir", "validation")}
"""Split -> (key of its folder, path within a run that was moved)."""
DEPTH = 3


@dataclass
class Run:
    """One run. Nothing is read before it is needed, and folders are listed each time: the run may still write."""

    path: Path
    name: str
    only: Path | None = None
    """A dump, or a folder of dumps, which is then all there is."""

    @property
    def metrics_file(self) -> Path:
        return self.path / METRICS_FILE

    @cached_property
    def folders(self) -> dict[str, Path]:
        """Folder of the dumps of each split."""
        trainer = _config(self.path / CONFIG_FILE).get("trainer") or {}
        home = trainer.get("default_local_dir")
        return {split: self._folder(trainer.get(key), name, home) for split, (key, name) in FOLDERS.items()}

    def dumps(self, split: str) -> dict[int, Path]:
        """The dumps of a split by step, in order."""
        if self.only is not None and split != "rollout":
            return {}
        if self.only is not None and self.only.is_file():
            return {int(self.only.stem) if self.only.stem.isdecimal() else 0: self.only}
        files = (self.only or self.folders[split]).glob("*.jsonl")
        return dict(sorted((int(file.stem), file) for file in files if file.stem.isdecimal()))

    def settings(self) -> dict[str, object]:
        """The configuration that the run started with, by dotted key; empty where it has none."""
        return dict(_flat("", _config(self.path / CONFIG_FILE)))

    def _folder(self, configured: object, name: str, home: object) -> Path:
        """The configured path is relative to where the run was started; a run that was copied or set aside has it
        inside, and nothing elsewhere if it was inside of `home`, the folder that the run had."""
        named = self.path / name
        if not configured or named.is_dir():
            return named
        if home and Path(str(configured)).is_relative_to(str(home)):
            return self.path / Path(str(configured)).relative_to(str(home))
        moved = self.path / Path(str(configured)).name
        return moved if moved.is_dir() else Path(str(configured))


def find_runs(paths: Sequence[str]) -> list[Run]:
    """The runs at or below each path, each with a different name. Raises UserError where there is none."""
    found: dict[Path, Run] = {}
    for path in map(Path, paths):
        here = _at(path, DEPTH)
        if not here:
            raise UserError(
                f"{path}: {'no run in there' if path.exists() else 'no such folder'}; name a run's folder "
                "(with metrics.jsonl), a folder of runs, or a dump of rollout_data_dir"
            )
        found |= {(run.only or run.path).resolve(): run for run in here}
    runs = list(found.values())
    _name(runs)
    return runs


def _at(path: Path, depth: int) -> list[Run]:
    if path.is_dir() and ((path / METRICS_FILE).exists() or _has_dumps(path)):
        return [Run(path, path.name)]
    if path.is_file() or _is_dump_folder(path):
        return [Run(path, path.name, only=path)]
    if not path.is_dir() or not depth:
        return []
    children = [child for child in sorted(path.iterdir()) if child.is_dir() and not child.name.startswith(".")]
    return [run for child in children for run in _at(child, depth - 1)]


def _has_dumps(path: Path) -> bool:
    return any(_is_dump_folder(path / name) for _, name in FOLDERS.values())


def _is_dump_folder(path: Path) -> bool:
    return any(file.stem.isdecimal() for file in path.glob("*.jsonl"))


def _name(runs: list[Run]) -> None:
    """Give runs the shortest ends of their paths that tell them apart."""
    for parts in range(1, 6):
        names = ["/".join((run.only or run.path).resolve().parts[-parts:]) for run in runs]
        if len(set(names)) == len(runs):
            break
    for run, name in zip(runs, names, strict=True):
        run.name = name


def _config(file: Path) -> dict[str, Any]:
    with suppress(OSError, yaml.YAMLError, TypeError, ValueError):
        return dict(read_yaml(file.read_text(encoding="utf-8")))
    return {}


def _flat(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    """`{a: {b: 1}}` as a.b: 1; an empty mapping is a value."""
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), below)
    elif prefix:
        yield prefix, value
