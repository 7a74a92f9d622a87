"""Settings as they stand in a file that someone brings along, each with the line it is on.

Two kinds of file: YAML, with the files that its `defaults` include where those lie beside it, and shell scripts with
`key=value` arguments. Nothing is translated or judged here.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentrl.config.presets import one_line
from agentrl.errors import UserError

ARGUMENT = re.compile(r"[+~]{0,2}[A-Za-z_][\w-]*([./@][\w./@-]+)+=.*", re.DOTALL)
"""A setting has a dot or a slash in its name; shell variables have none."""
ASSIGNMENT = re.compile(r"^\s*(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=(.*)$")
VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::?[-=]([^}]*))?\}|\$([A-Za-z_]\w*)")
PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Given:
    """One setting as someone wrote it."""

    file: Path
    line: int
    path: str
    value: Any
    """As YAML or Hydra's grammar reads it; `${...}` is left as it is."""


@dataclass
class Source:
    """What a file sets, and what it leans on."""

    settings: list[Given] = field(default_factory=list)
    includes: list[tuple[int, str]] = field(default_factory=list)
    """Line and name of what `defaults` lists and is not beside the file."""
    mistakes: list[tuple[int, str]] = field(default_factory=list)
    """Line and what is wrong with it, where nothing can be read."""
    program: str = ""
    """The module that a script starts."""


def read_source(file: Path) -> Source:
    """Everything that a YAML file or a shell script sets. Raises UserError when it is neither."""
    if file.suffix in (".yaml", ".yml"):
        source = Source()
        _YamlFiles(source, file.parent).read(file, "")
        return source
    return _Script(file).read()


class _YamlFiles:
    """A file and those that it includes."""

    def __init__(self, source: Source, root: Path) -> None:
        self.source, self.root = source, root
        self.chosen: dict[str, str] = {}
        """Options of groups so far, for `${group}` in later ones."""
        self.overridden: dict[str, str] = {}
        """Options that an including file chooses in place of an included one's."""

    def read(self, file: Path, package: str) -> None:
        """Add what `file` sets below `package`. Raises UserError when it is no YAML mapping."""
        text = file.read_text(encoding="utf-8")
        try:
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
                self._include(name, group.removeprefix("optional "), place, (file, line, package))

    def _include(self, name: str, group: str, place: str, origin: tuple[Path, int, str]) -> None:
        file, line, package = origin
        if name in ("_self_", "null", "~", ""):
            return
        name = self.overridden.get(_bare(group), name)
        name = re.sub(r"\$\{([^}]+)\}", lambda match: self.chosen.get(match[1], match[0]), name)
        self.chosen[group.strip("./")] = name
        base = self.root if group.startswith("/") else file.parent
        found = (base / group.lstrip("/") / f"{name.removesuffix('.yaml')}.yaml").resolve()
        if not found.is_file() or found == file.resolve():
            self.source.includes.append((line, f"{group}/{name}".lstrip("/")))
            return
        inner = place or group.strip("./").replace("/", ".")
        self.read(found, "" if inner == "_global_" else _joined(package, inner) if inner else package)


def _entries(item: yaml.Node) -> list[tuple[str, str, str, int]]:
    """(option, group, package, line) of an item of `defaults`."""
    line = item.start_mark.line + 1
    if isinstance(item, yaml.ScalarNode):
        group, _, name = item.value.rpartition("/")
        return [(name, group, "", line)]
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
    yield Given(file, node.start_mark.line + 1, path, value)


class _Script:
    """A shell script, read word by word: no shell runs."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.source = Source()
        self.variables: dict[str, str] = {}

    def read(self) -> Source:
        """Settings among its words, with variables of the script's own filled in."""
        for first, text in _commands(self.file.read_text(encoding="utf-8")):
            assigned = ASSIGNMENT.match(text)
            if assigned and "\n" not in text and not ARGUMENT.match(text.strip()):
                self.variables[assigned[1]] = self._filled(assigned[2].strip().strip("\"'"))
                continue
            for line, word in _words(text, first):
                self._word(line, word)
        return self.source

    def _word(self, line: int, word: str) -> None:
        if word.startswith(("verl.", "agentrl.")):
            self.source.program = word
        elif ARGUMENT.fullmatch(word) and not word.startswith("-"):
            self._setting(line, self._filled(word))

    def _setting(self, line: int, text: str) -> None:
        from agentrl.config.overrides import parse_override

        try:
            override = parse_override(_hydra_safe(text))
        except UserError as error:
            self.source.mistakes.append((line, str(error)))
            return
        name = override.get_key_element().lstrip("+~")
        if not override.is_delete():
            self.source.settings += _flat(Given(self.file, line, name, override.value()))

    def _filled(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            return self.variables.get(match[1] or match[3], match[2] if match[2] is not None else match[0])

        return VARIABLE.sub(value, text)


def _hydra_safe(text: str) -> str:
    """A shell variable that the script does not set stays a word that Hydra can read."""
    return VARIABLE.sub(lambda match: f"${{oc.env:{match[1] or match[3]}}}", text)


def _flat(given: Given) -> Iterator[Given]:
    """`a={b: 1}` as `a.b=1`."""
    if not isinstance(given.value, Mapping) or not given.value:
        yield given
        return
    for name, value in given.value.items():
        yield from _flat(Given(given.file, given.line, f"{given.path}.{name}", value))


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """(number of its first line, text) of each command; continued lines stay together, comments are gone."""
    held: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*$", r"\1", line).rstrip()
        held.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield number - len(held) + 1, "\n".join(held)
            held = []
    if held:
        yield number - len(held) + 1, "\n".join(held)


def _words(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Words with the line that each is on; a line whose quotes do not close is cut at blanks."""
    for number, line in enumerate(text.split("\n"), start=first):
        try:
            words = shlex.split(line, posix=True)
        except ValueError:
            words = line.replace('"', " ").replace("'", " ").split()
        yield from ((number, word.strip("()")) for word in words)


def _joined(package: str, name: str) -> str:
    return f"{package}.{name}" if package else name
