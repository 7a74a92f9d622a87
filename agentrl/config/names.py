"""Other names for keys: those of other frameworks, by their layers, and those of earlier versions, in old_names.yaml.

Invariant: a real key passes through untouched, unless the table has an entry for just this value of it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from agentrl.config.keys import Key, ancestors, home
from agentrl.core.compatibility import OLD_VALUE, Layer, Rename, layers
from agentrl.core.errors import UserError
from agentrl.core.foreign import read_beside

QUOTIENT = re.compile(r"=\$\{quotient:\{value\},\$\{([\w.]+)\}\}")
ABOVE = "{above}"
"""Stands for the section of an entry's name in its text."""
KINDS = {"merged": "moved", "internal": "silent"}
"""Further actions in a table of names, and those that they are."""
OLD_NAMES = Path(__file__).with_name("old_names.yaml")


@dataclass(frozen=True)
class Setting:
    """One key and its value, or its removal."""

    path: str
    """Empty: the setting has no effect here."""
    value: Any
    order: int = 0
    """Place among the settings of a file: 1 for an old name, -1 for one that yields to today's."""
    notes: tuple[str, ...] = ()
    """Lines for the person."""
    delete: bool = False


def table() -> Mapping[str, Rename]:
    """Every entry by its name."""
    return _table(tuple(layers()))


@cache
def _table(known: tuple[Layer, ...]) -> Mapping[str, Rename]:
    return {name: entry for layer in known for name, entry in layer.renames().items()} | read_table(OLD_NAMES)


def read_table(file: Path) -> dict[str, Rename]:
    """The entries of a YAML file, by name: under each action, names with a text, or names alone."""
    entries: dict[str, Rename] = {}
    for action, part in read_beside(file, file.name).items():
        kind, merged = KINDS.get(action, action), action == "merged"
        items = part.items() if isinstance(part, dict) else ((name, "") for name in part)
        each = ((name, text) for names, text in items for name in _each(names))
        for name, text in each:
            section = name.partition("=")[0].rpartition(".")[0]
            entries[name] = Rename(name, kind, text.replace(ABOVE, section), merged)
    return entries


def _each(names: str) -> list[str]:
    """`a|b.x|y=1` is a.x=1, a.y=1, b.x=1 and b.y=1; an empty part is left out."""
    path, equals, value = names.partition("=")
    parts = product(*(part.split("|") for part in path.split(".")))
    return [".".join(filter(None, found)) + equals + value for found in parts]


def translate(path: str, value: Any, keys: Mapping[str, Key]) -> Setting:
    """Today's setting: follow the table from `path` to one of `keys`, to nothing, or to a name that nobody knows.

    Raises UserError for what is refused.
    """
    notes: list[str] = []
    original, order = path, 0
    while entry := lookup(path, value, keys):
        if entry.action == "noted":
            notes += [f"{path}: {entry.text}"] if path != original else []
            break
        if entry.action == "moved":
            new = _move(entry, path, value)
            divisor = QUOTIENT.search(entry.text)
            notes.append(f"{entry.name} is {entry.target} here{f', divided by {divisor[1]}' if divisor else ''}")
            path, value = new
            order = -1 if entry.merged else 1
            continue
        return Setting("", None, notes=_dropped_note(entry, original, value))
    if value is None and path != original and not may_be_null(path, keys):
        return Setting("", None)  # another framework's way of not setting it
    return Setting(path, value, order, tuple(notes))


def destination(path: str, keys: Mapping[str, Key]) -> str:
    """Today's name of a key, for any value: for mappings, references and removals."""
    no_value = object()  # entries for single values do not apply
    while (entry := lookup(path, no_value, keys)) and entry.action == "moved":
        path = _move(entry, path, None)[0]
    return path


def reaches_into(path: str) -> bool:
    """Whether the table knows names below `path`."""
    return any(name.startswith(f"{path}.") for name in table())


def lookup(path: str, value: Any, keys: Mapping[str, Key]) -> Rename | None:
    """The entry that covers a setting: this value of it, its name, or the longest name above it."""
    if entry := _entry(f"{path}={written(value)}"):
        return entry
    real = home(path, keys)
    for ancestor in ancestors(path):
        if real and real.path == ancestor:
            return None
        if entry := _entry(ancestor):
            return entry
    return None


def _entry(setting: str) -> Rename | None:
    """The entry of a name, or of a name=value. `*` in an entry stands for any one part of a name."""
    if entry := table().get(setting):
        return entry
    name, *value = setting.split("=", 1)
    parts = name.split(".")
    for i, part in enumerate(parts):
        if entry := table().get("=".join([".".join([*parts[:i], "*", *parts[i + 1 :]]), *value])):
            return replace(entry, name=setting, text=entry.text.replace("*", part))
    return None


def may_be_null(path: str, keys: Mapping[str, Key]) -> bool:
    """Whether null is a value of the key."""
    key = keys.get(path)
    return key is None or "null" in key.type_name or key.type_name == "any"


def written(value: Any) -> str:
    """A value as YAML writes it: true, null, 0.5, text."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _move(entry: Rename, path: str, value: Any) -> tuple[str, Any]:
    target, has_value, new = entry.text.partition("=")
    if has_value:
        return target, yaml.safe_load(new.replace(OLD_VALUE, written(value)))
    return target + path[len(entry.name.partition("=")[0]) :], value


def _dropped_note(entry: Rename, path: str, value: Any) -> tuple[str, ...]:
    unset = value is None or value in ({}, [], "")
    if entry.action == "silent" or unset:
        return ()
    if entry.action == "refused":
        setting = path if isinstance(value, dict | list) else f"{path}={written(value)}"
        raise UserError(f"{setting}: {entry.text}")
    return (f"{entry.name} has no effect: {entry.text}",)
