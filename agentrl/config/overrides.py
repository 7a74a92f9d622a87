"""Overrides in Hydra's grammar: `key=value`, `+key=value`, `++key=value`, `~key`, `group=preset`.

A + makes no difference to a key of the schema; other names need it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl.config.names import Setting, destination
from agentrl.config.presets import Presets
from agentrl.config.tree import ADDED, CHANGED, Reader
from agentrl.core.errors import UserError, one_line

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

QUOTED_OR_WORD = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\$\{[^}]*\}|(?P<entry>(?<=[{,])\s*\w+\s*:\s*)?"""
    r"""(?P<word>[^][{}(),'"=?]*\?[^][{}(),'"\s]+|[^][{}(),'"=]+)"""
)
"""A quoted text, an interpolation, or a word, which may have blanks within, and a = after a question mark."""
FOREIGN = re.compile(r"[~#&;!^<>`=]|[^\x00-\x7f]")
"""Characters that Hydra's grammar has only within quotes."""


def read_overrides(texts: Sequence[str], reader: Reader, presets: Presets) -> tuple[list[str], Iterator[Setting]]:
    """Choices of files for Hydra, and settings in the order given, read as they are asked for. Raises UserError."""
    choices: list[str] = []
    others: list[tuple[str, str, Override]] = []
    for text in texts:
        override = parse_override(text)
        name = override.get_key_element().lstrip("+~")
        name = name.replace("/", ".") if name.startswith("hydra/") else name  # all of hydra's own is one note
        if _is_choice(name, override, reader, presets):
            choices.append(_checked_choice(text, name, override, presets))
        else:
            others.append((text, name, override))
    return choices, (setting for other in others for setting in _settings(*other, reader))


def _settings(text: str, name: str, override: "Override", reader: Reader) -> Iterable[Setting]:
    if override.is_delete():
        path = destination(name, reader.keys)
        return [Setting(path if path in reader.sections else reader.place(path), None, delete=True)]
    return reader.read(name, _value(text, override), way=ADDED if text.startswith("+") else CHANGED)


def read_values(values: Mapping[str, Any], reader: Reader, presets: Presets) -> tuple[list[str], Iterator[Setting]]:
    """Overrides from values by key, `{"rollout.n": 4}` or `{"rollout": {"n": 4}}`; texts are taken as they are."""
    choices: list[str] = []
    others: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, str) and "." not in name and not reader.known(name) and presets.options(name):
            choices += read_overrides([f"{name}={value}"], reader, presets)[0]
        else:
            others[name] = value
    return choices, (setting for name, value in others.items() for setting in reader.read(name, value))


def parse_override(text: str) -> "Override":
    """One override as Hydra reads it; words with characters that its grammar lacks are texts. Raises UserError."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, equals, value = text.partition("=")
    if not (key.startswith("~") or (key and equals)) or value.startswith("="):
        raise UserError(f"{text}: an override is key=value, with one = and without spaces around it")
    try:
        return OverridesParser.create().parse_override(key + equals + QUOTED_OR_WORD.sub(_quoted, value))
    except HydraException as error:
        fix = "quote values that hold blanks, commas or brackets: 'key=\"a, b\"'"
        reason = one_line(error).partition(" See ")[0]
        raise UserError(f"{text}: not in Hydra's grammar ({reason}); {fix}") from error


def _quoted(found: "re.Match[str]") -> str:
    """A word with quotes around it where Hydra's grammar has no characters for it: `~/ü#1`."""
    entry, word, before = found["entry"] or "", found["word"], found.string[: found.start()]
    if word is None or not FOREIGN.search(word):
        return found[0]
    if before.rfind("[") > max(before.rfind("{"), before.rfind("]")):  # in a list, `name:` begins a word
        entry, word = "", entry + word
    core = word.strip()
    return entry + word.replace(core, '"' + core.replace('"', '\\"') + '"')


def _is_choice(name: str, override: "Override", reader: Reader, presets: Presets) -> bool:
    """`model=smollm2` names a file, `model={path: x}` and `model.path=x` set keys."""
    if "/" in name or "@" in name:
        return True
    if override.is_delete():
        return name not in reader.sections and bool(presets.options(name))
    whole = not reader.known(name) and "." not in name
    return whole and isinstance(override.value(), str) and bool(presets.options(name))


def _checked_choice(text: str, name: str, override: "Override", presets: Presets) -> str:
    group = name.partition("@")[0]
    options = presets.options(group)
    if not options:
        raise UserError(f"{text}: there is no group {group}; --help lists them")
    if not override.is_delete() and override.value() not in options:
        raise UserError(f"{text}: no such preset; configs/{group} has {', '.join(options)}")
    return text.lstrip("+")


def _value(text: str, override: "Override") -> Any:
    if override.is_sweep_override():
        key, _, values = text.partition("=")
        raise UserError(f"{text}: one run takes one value; for a list write {key}=[{values}], for a run with each -m")
    return override.value()
