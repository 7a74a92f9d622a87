"""YAML files and how Hydra puts them together.

Files are looked for in the person's --config-dir first, then among ours, then in the `hydra.searchpath` of the chosen
file; so a file of one's own replaces ours of the same name, and any file may list ours under `defaults`.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from agentrl import resources
from agentrl.config.keys import nearest
from agentrl.errors import UserError

OTHERS: ContextVar[Sequence[Path]] = ContextVar("folders after the first", default=())


@contextmanager
def also_in(folders: Sequence[Path]) -> Iterator[None]:
    """Let Hydra look in `folders` too, by way of its plugins: its own functions take one folder."""
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class Folders(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            for folder in OTHERS.get():
                search_path.append("agentrl", f"file://{folder}")

    if "Folders" not in {plugin.__name__ for plugin in Plugins.instance().discover(SearchPathPlugin)}:
        Plugins.instance().register(Folders)
    token = OTHERS.set(folders)
    try:
        yield
    finally:
        OTHERS.reset(token)


class Presets:
    """The chosen file `name` and the folders around it."""

    def __init__(self, name: str, folder: str | None = None) -> None:
        """Raises UserError when the folder or the file does not exist, or the file is no YAML."""
        self.notes: list[str] = []
        self.name = name.removesuffix(".yaml").removesuffix(".yml")
        self.folders = [resources.share() / "configs"]
        if folder is not None:
            self.folders.insert(0, _folder(folder))
        self.searchpath: list[str] = []
        self.searchpath += self._searchpath()

    def options(self, group: str) -> list[str]:
        """Names of the files in a group, or at the top level for ""."""
        places = [*self.folders, *(Path(place) for place in self.searchpath)]
        return sorted({file.stem for place in places for file in (place / group).glob("*.yaml")})

    def compose(self, choices: Sequence[str]) -> DictConfig:
        """The file and what it includes, with `choices` of groups (`model=smollm2`) applied. Raises UserError."""
        if choices:
            chosen = self._hydra([], whole=True).hydra.runtime.choices
            choices = [text if _group(text) in chosen else f"+{text}" for text in choices]
        return self._hydra(choices)

    def _hydra(self, choices: Sequence[str], *, whole: bool = False) -> DictConfig:
        from hydra import compose, initialize_config_dir
        from hydra.errors import HydraException

        main, *others = self.folders
        try:
            with (
                warnings.catch_warnings(record=True) as caught,
                also_in(others),
                initialize_config_dir(str(main), version_base="1.3"),
            ):
                config = compose(self.name, list(choices), return_hydra_config=whole)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
            raise UserError(f"{self.name}.yaml: {one_line(error)}") from error
        said = [str(warning.message).partition(" See ")[0] for warning in caught]
        self.notes += [text for text in said if not text.startswith("provider=") and text not in self.notes]
        return config

    def _searchpath(self) -> list[str]:
        """Folders that the chosen file adds; one that is not there is noted and left out."""
        file = self._file()
        try:
            raw = yaml.safe_load(file.read_text()) or {}
        except yaml.YAMLError as error:
            raise UserError(f"{file} is not YAML: {one_line(error)}") from error
        if not isinstance(raw, dict):
            raise UserError(f"{file} must hold keys and values")
        hydra: Any = raw.get("hydra") or {}
        places = [str(place).removeprefix("file://") for place in hydra.get("searchpath") or []]
        return [str(Path(place).resolve()) for place in places if self._exists(place)]

    def _exists(self, place: str) -> bool:
        if not (found := Path(place).is_dir()):
            self.notes.append(f"hydra.searchpath: {place} is no folder and is left out")
        return found

    def _file(self) -> Path:
        for folder in self.folders:
            if (file := folder / f"{self.name}.yaml").is_file():
                return file
        options = self.options("")
        guess = nearest(self.name, options)
        mend = f"did you mean {guess}?" if guess else f"there are {', '.join(options)}"
        raise UserError(f"--config-name {self.name}: no such file in {self.folders[0]}; {mend}")


def shipped() -> dict[str, list[str]]:
    """Names of our own files by group; "" holds the experiments."""
    root = resources.share() / "configs"
    files = sorted(root.glob("*.yaml")) + sorted(root.glob("*/*.yaml"))
    names: dict[str, list[str]] = {}
    for file in files:
        names.setdefault("" if file.parent == root else file.parent.name, []).append(file.stem)
    return names


def _group(choice: str) -> str:
    return choice.lstrip("~").partition("=")[0]


def _folder(path: str) -> Path:
    folder = Path(path).expanduser().resolve()
    if not folder.is_dir():
        raise UserError(f"--config-dir {path}: no such folder")
    return folder


def one_line(error: Exception) -> str:
    """An error's message, and that of its cause, without line breaks."""
    texts = [str(error), str(error.__cause__ or "")]
    return "; ".join(" ".join(text.split()) for text in texts if text.strip())
