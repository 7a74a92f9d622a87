"""YAML files and how Hydra puts them together.

Files are searched in the user's --config-dir first, then among ours, then in the `hydra.searchpath` of the chosen
file; so a user's file replaces ours of the same name, and any file may list ours under `defaults`.
"""

import re
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from agentrl.config.keys import nearest
from agentrl.config.names import table
from agentrl.core import resources
from agentrl.core.errors import UserError, one_line
from agentrl.core.grouping import grouped
from agentrl.core.paths import expanded

MISSING_FOLDER = re.compile(r"provider=hydra\.searchpath.*, path=(.+) is not available\.")


class Presets:
    """The chosen file `name` and the folders around it."""

    def __init__(self, name: str, folder: str | None = None) -> None:
        """Raises UserError when the folder or the file does not exist, or the file is no YAML."""
        self.notes: list[str] = []
        self.name = name.removesuffix(".yaml").removesuffix(".yml")
        self.folders = [resources.share() / "configs"]
        if folder is not None:
            self.folders.insert(0, _folder(folder))
        self.own = self.folders[:-1]
        """The user's folders."""
        self.searchpath: list[Path] = []
        self.searchpath = _searchpath(self._file())

    def options(self, group: str) -> list[str]:
        """Names of the files in a group, or at the top level for ""."""
        places = [*self.folders, *self.searchpath]
        return sorted({file.stem for place in places for file in (place / group).glob("*.yaml")})

    def compose(self, choices: Sequence[str]) -> DictConfig:
        """The file and what it includes, with `choices` of groups (`model=smollm2`) applied. Raises UserError."""
        if choices:
            chosen = self._hydra([], whole=True).hydra.runtime.choices
            choices = [text if text.lstrip("~").partition("=")[0] in chosen else f"+{text}" for text in choices]
        return self._hydra(choices)

    def _hydra(self, choices: Sequence[str], *, whole: bool = False) -> DictConfig:
        from hydra.errors import HydraException

        wanted = (self.name, tuple(self.folders), tuple(choices), whole)
        mixed = self.own or self.searchpath
        try:
            config, warned = _compose(*wanted) if mixed else _compose_ours(_state(self.folders[0]), *wanted)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
            causes = (each for each in (error, error.__cause__) if each is not None and str(each).strip())
            raise UserError(f"{self.name}.yaml: {'; '.join(map(one_line, causes))}") from error
        self.notes = list(dict.fromkeys([*self.notes, *map(_note, warned)]))
        return config

    def _file(self) -> Path:
        for folder in self.folders:
            if (file := folder / f"{self.name}.yaml").is_file():
                return file
        options = self.options("")
        guess = nearest(self.name, options)
        fix = why_not(self.name) or (f"did you mean {guess}?" if guess else f"choose one of {', '.join(options)}")
        raise UserError(
            f"--config-name {self.name}: no such file in {self.folders[0]} (--config-dir names another); {fix}"
        )


def why_not(name: str) -> str:
    """The reason for which a file of another framework has no counterpart here; "" for other names."""
    entry = table().get(name)
    return entry.text if entry is not None and entry.action == "refused" else ""


def _compose(name: str, folders: Sequence[Path], choices: Sequence[str], whole: bool) -> tuple[DictConfig, list[str]]:
    """The tree that Hydra puts together from the folders, in the order of the folders; and its warnings."""
    from hydra import compose, initialize_config_dir
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.global_hydra import GlobalHydra

    main, *others = folders
    with warnings.catch_warnings(record=True) as caught, initialize_config_dir(str(main), version_base="1.3"):
        loader: Any = GlobalHydra.instance().config_loader()
        for folder in others:  # Hydra's own functions take one folder
            loader.get_search_path().prepend("agentrl", f"file://{folder}", SearchPathQuery(provider="schema"))
        loader.repository.initialize_sources(loader.get_search_path())
        config = compose(name, list(choices), return_hydra_config=whole)
    return config, [str(warning.message) for warning in caught]


@lru_cache(maxsize=64)
def _compose_ours(
    state: frozenset[tuple[Path, int]], name: str, folders: Sequence[Path], choices: Sequence[str], whole: bool
) -> tuple[DictConfig, list[str]]:
    """The tree composed from the shipped files alone, once: callers must not change it."""
    return _compose(name, folders, choices, whole)


def _state(folder: Path) -> frozenset[tuple[Path, int]]:
    """When each file was written."""
    return frozenset((file, file.stat().st_mtime_ns) for file in folder.rglob("*.yaml"))


def _searchpath(file: Path) -> list[Path]:
    """Folders that a file adds by `hydra.searchpath`. Raises UserError when it is no YAML."""
    try:
        raw = yaml.safe_load(resources.read_text(file)) or {}
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not YAML: {one_line(error)}") from error
    if not isinstance(raw, dict):
        raise UserError(f"{file} must hold keys and values")
    hydra = raw.get("hydra")
    places = hydra.get("searchpath") if isinstance(hydra, dict) else None
    return [Path(str(place).removeprefix("file://")).resolve() for place in places or []]


def _note(warning: str) -> str:
    """A warning of Hydra's; a missing folder in one line."""
    missing = MISSING_FOLDER.fullmatch(warning)
    return f"hydra.searchpath: {missing[1]} does not exist" if missing else warning.partition(" See ")[0]


def shipped() -> dict[str, list[str]]:
    """Names of our own files by group; "" holds the experiments."""
    root = resources.share() / "configs"
    files = sorted(root.glob("*.yaml")) + sorted(root.glob("*/*.yaml"))
    groups = grouped(files, lambda file: "" if file.parent == root else file.parent.name)
    return {group: [file.stem for file in found] for group, found in groups.items()}


def _folder(path: str) -> Path:
    folder = expanded(path).resolve()
    if not folder.is_dir():
        raise UserError(f"--config-dir {path}: no such folder")
    return folder
