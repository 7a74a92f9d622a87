"""YAML files and those that they include, each setting with its line."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentrl.config.keys import nearest
from agentrl.config.presets import one_line, why_not
from agentrl.config.tree import IN_FILE
from agentrl.core import resources
from agentrl.core.errors import UserError
from agentrl.core.foreign import read_yaml
from agentrl_verl.reading.defaults import table
from agentrl_verl.reading.program_settings import Given, Source

PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)


class YamlFiles:
    """A file and those that it includes."""

    def __init__(self, source: Source, root: Path) -> None:
        self.source, self.root = source, root
        self.shipped = resources.share() / "configs"
        self.places: list[Path] = []
        """Further folders in which Hydra looks."""
        self.chosen: dict[str, str] = {}
        """Options of groups so far, for `${group}` in later ones."""
        self.overridden: dict[str, str] = {}
        """Options that an including file chooses in place of an included one's."""

    def read(self, file: Path, package: str) -> None:
        """Add what `file` sets below `package`. Raises UserError when it is no YAML mapping."""
        text = file.read_text(encoding="utf-8")
        try:
            read_yaml(text)  # it refuses what would keep the next two busy
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            values = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
        except (yaml.YAMLError, OmegaConfBaseException) as error:
            raise UserError(f"{file} is not YAML: {one_line(error)}") from error
        if node is None:
            return
        if not isinstance(node, yaml.MappingNode) or not isinstance(values, dict):
            raise UserError(f"{file} must hold keys and values")
        if (found := PACKAGE.search(text)) is not None:
            package = "" if found[1] == "_global_" else found[1]
        hydra = values.get("hydra")
        searched = hydra.get("searchpath") if isinstance(hydra, dict) else None
        self.places += [Path(str(place).removeprefix("file://")).resolve() for place in searched or []]
        for key, below in node.value:
            if key.value == "defaults":
                self._defaults(below, file, package)
            else:
                self.source.settings += _leaves(below, values.get(key.value), _joined(package, key.value), file)

    def _defaults(self, node: yaml.Node, file: Path, package: str) -> None:
        entries = [entry for item in node.value for entry in _entries(item)]
        for name, group, *_ in entries:
            if group.startswith("override "):
                self.overridden[_bare(group)] = name
        for name, group, place, line in entries:
            if not group.startswith("override "):
                self._include(name, group, place, (file, line, package))

    def _include(self, name: str, group: str, place: str, origin: tuple[Path, int, str]) -> None:
        file, line, package = origin
        optional, group = group.startswith("optional "), group.removeprefix("optional ")
        if name in ("_self_", "null", "~", ""):
            return
        name = self.overridden.get(_bare(group), name)
        name = re.sub(r"\$\{([^}]+)\}", lambda match: self.chosen.get(match[1], match[0]), name)
        self.chosen[group.strip("./")] = name
        base = self.root if group.startswith("/") else file.parent
        shown, relative = f"{group}/{name}".lstrip("/"), Path(group.lstrip("/"), f"{name.removesuffix('.yaml')}.yaml")
        candidates = [(folder / relative).resolve() for folder in (base, *self.places)]
        found = next((each for each in candidates if each.is_file() and each != file.resolve()), None)
        inner = place or group.strip("./").replace("/", ".")
        package = "" if inner == "_global_" else _joined(package, inner) if inner else package
        if found is not None:
            self.read(found, package)
        elif shown in table()["files"] or "${" in shown or optional or group.startswith("/hydra/"):
            self.source.includes.append((line, shown))
        elif (ours := self.shipped / relative).is_file():
            self._read_shipped(ours, package)
        else:
            self.source.mistakes.append((line, self._missing(shown, group)))

    def _read_shipped(self, file: Path, package: str) -> None:
        """agentrl's own file is a base: its settings count, and have no verdict."""
        files = YamlFiles(Source(), self.shipped)
        files.overridden, files.chosen = self.overridden, self.chosen
        files.read(file, package)
        self.source.base += files.source.base + files.source.settings

    def _missing(self, shown: str, group: str) -> str:
        places = (self.root, *self.places, self.shipped)
        files = [file for place in places for file in (place / group.lstrip("/")).glob("*.yaml")]
        guess = nearest(shown, [f"{group}/{file.stem}".lstrip("/") for file in files])
        fix = f"; did you mean {guess}?" if guess else ""
        if reason := why_not(shown):
            return f"defaults: {shown} is {reason}"
        return f"defaults: {shown}: no such file beside it or among agentrl's{fix}"


def _entries(item: yaml.Node) -> list[tuple[str, str, str, int]]:
    """(option, group, package, line) of an item of `defaults`."""
    line = item.start_mark.line + 1
    if isinstance(item, yaml.ScalarNode):
        option, place = _group(item.value)
        group, _, name = option.rpartition("/")
        return [(name, group, place, line)]
    return [(option.value, *_group(key.value), line) for key, option in item.value]


def _group(key: str) -> tuple[str, str]:
    group, _, place = key.partition("@")
    return group, place


def _bare(group: str) -> str:
    return group.removeprefix("override ").removeprefix("optional ").strip("./ ")


def _leaves(node: yaml.Node, value: Any, path: str, file: Path) -> Iterator[Given]:
    if isinstance(node, yaml.MappingNode) and node.value and isinstance(value, dict):
        for key, below in node.value:
            found = value.get(key.value, value.get(yaml.safe_load(key.value)))
            yield from _leaves(below, found, f"{path}.{key.value}", file)
        return
    yield Given(file, node.start_mark.line + 1, path, value, IN_FILE)


def _joined(package: str, name: str) -> str:
    return f"{package}.{name}" if package else name
