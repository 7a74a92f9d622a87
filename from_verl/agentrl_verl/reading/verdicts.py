"""What becomes of each setting that someone brings along.

Invariant: a verdict is what a run would do with the setting, and comes from the same table and the same schema: where
a run would stop, the verdict is one of FATAL.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentrl.config import paths
from agentrl.config.checks import files
from agentrl.config.choices import CHOICES, OPEN
from agentrl.config.keys import Key, ancestors, custom_place, home, nearest, schema_keys, schema_sections, typo_of
from agentrl.config.names import Setting, destination, lookup, may_be_null, table, translate, written
from agentrl.config.schema.evaluation import EvalConfig
from agentrl.config.schema.sft import SftConfig
from agentrl.config.tree import ADDED, CHANGED, INTERPOLATION, Reader, on_defaults, resolved, to_object
from agentrl.config.validate import ANSWERING, SETTINGS, SUPERVISED, check_word, sections_for
from agentrl.core.errors import UserError
from agentrl_verl.reading.defaults import VerlDefaults
from agentrl_verl.reading.name_tables import meanings
from agentrl_verl.reading.program_settings import Given, Source

Kind = Literal["same", "moved", "differs", "own", "anyway", "ignored", "refused", "unknown", "wrong"]
FATAL = ("refused", "unknown", "wrong")
TEXTS = ("str", "str or null", "any")
"""Types of keys that any text may be."""
VARIABLE = re.compile(r"\$\{oc\.env:(\w+)\}")
CHECKS = {EvalConfig: ANSWERING, SftConfig: SUPERVISED}
"""Checks of a run by the class of its configuration, where they are not SETTINGS."""
OF_FILES = (files.__name__, paths.__name__)
"""Modules of the checks that look for files."""
UNKNOWABLE = object()
"""Stands for a value that a reference hides."""


@dataclass(frozen=True)
class Verdict:
    """One setting and what becomes of it."""

    given: Given
    kind: Kind
    home: str | None = None
    """The key here, with `=value` where the value changes too."""
    text: str = ""


def meaning(path: str, value: Any) -> str | None:
    """How a key of ours differs from verl's of the same name, with this value."""
    exact = f"{path}={written(value)}"
    noted = table().get(exact)
    if noted is not None and noted.action == "noted":
        return noted.text
    return meanings().get(exact) or meanings().get(path)


class Judge:
    """Judges settings against a schema."""

    def __init__(self, schema: type, settings: Sequence[Given], *, open_files: bool = False) -> None:
        self.schema, self.open_files = schema, open_files
        self.keys: Mapping[str, Key] = schema_keys(schema)
        self.sections = schema_sections(schema)
        self.origin = _tree(settings)
        added = {destination(given.path, self.keys): given.way for given in settings if given.way != CHANGED}
        if not open_files:
            added = {name: way for name, way in added.items() if way == ADDED and not typo_of(name, self.keys)}
        self.theirs = {*added}
        """Names that the user's own code may read."""
        self.typed = OmegaConf.structured(schema)
        self.registers = any(given.path.endswith("model.external_lib") and given.value for given in settings)
        """Whether a module of the user's own may give names a meaning."""

    def verdict(self, given: Given) -> Verdict:
        """What a run would do with it."""
        path, value = given.path, self._value(given)
        if path.rpartition(".")[2] == "_target_":
            return Verdict(given, "anyway", None, "classes are chosen by agentrl")
        if value == "???":
            return Verdict(given, "anyway", None, "not set")
        if value is UNKNOWABLE:
            return self._named(given, destination(path, self.keys))
        try:
            found = translate(path, value, self.keys)
        except UserError as error:
            return Verdict(given, "refused", None, str(error).partition(": ")[2])
        if not found.path:
            if found.notes:
                return Verdict(given, "ignored", None, found.notes[0].partition(": ")[2])
            unset = value is None or value in ({}, [], "")
            return Verdict(given, "anyway", None, "not set" if unset else "what agentrl does anyway")
        return self._of_key(given, value, found.path, found.value)

    def _of_key(self, given: Given, value: Any, path: str, new: Any) -> Verdict:
        """The verdict on `given.path=value`, which is `path=new` here."""
        if self.open_files and new is None and not may_be_null(path, self.keys):
            return Verdict(given, "anyway", None, "not set")
        named = self._named(given, path)
        if named.kind not in ("same", "moved"):
            return named
        if trouble := self._misfit(path, new):
            return Verdict(given, "wrong", path, trouble)
        shown = path if written(new) == written(value) else f"{path}={written(new)}"
        if differs := meaning(path, new):
            return Verdict(given, "differs", shown, differs)
        return Verdict(given, named.kind, shown)

    def _named(self, given: Given, path: str) -> Verdict:
        if home(path, self.keys):
            return Verdict(given, "same" if path == given.path else "moved", path)
        entry = lookup(path, UNKNOWABLE, self.keys)
        if entry is not None:
            kind: Kind = "refused" if entry.action == "refused" else "ignored"
            return Verdict(given, kind, None, entry.text or "what agentrl does anyway")
        if path in self.sections:
            empty = given.value is None or given.value == {}
            return Verdict(given, "anyway" if empty else "wrong", path, "" if empty else "a section; set its keys")
        if (place := custom_place(path, self.keys)) and not self.theirs.isdisjoint(ancestors(path)):
            typo = typo_of(path, self.keys)
            return Verdict(given, "own", place, f"for your own code{f'; did you mean {typo}?' if typo else ''}")
        guess = nearest(path, self.keys)
        return Verdict(given, "unknown", None, f"did you mean {guess}?" if guess else "agentrl has no such key")

    def _value(self, given: Given) -> Any:
        if not isinstance(given.value, str) or not INTERPOLATION.search(given.value):
            return given.value
        with suppress(UserError):
            return resolved(self.origin, given.path)
        return UNKNOWABLE

    def _misfit(self, path: str, value: Any) -> str | None:
        """Why a key cannot have this value."""
        key = self.keys.get(path)
        if key is None:
            return None
        value = [value] if key.is_list and isinstance(value, str) else value
        try:
            OmegaConf.update(self.typed, path, value, merge=True)
            if path in CHOICES:
                check_word(path, value, CHOICES[path])
            if path in OPEN and not self.registers:
                self._check_open(path, value)
        except OmegaConfBaseException:
            return f"must be {key.type_name}"
        except UserError as error:
            return str(error).partition(": ")[2]
        return None

    def _check_open(self, path: str, value: Any) -> None:
        for word in value if isinstance(value, list) else [value]:
            if word is not None and (trouble := OPEN[path].trouble(str(word), path)):
                raise UserError(trouble)


def judge(source: Source, schema: type, *, open_files: bool = False) -> list[Verdict]:
    """A verdict for each setting, in the order of the file. `open_files`: its files may have names that are no keys."""
    found = Judge(schema, source.settings, open_files=open_files)
    return [_with_unset(found.verdict(given), source.unset, found.keys) for given in source.settings]


def _with_unset(verdict: Verdict, unset: Collection[str], keys: Mapping[str, Key]) -> Verdict:
    """Wrong where the shell passes nothing, for its variable is not set, and the key takes no empty text.

    Nothing of a key that is refused is refused.
    """
    variable = VARIABLE.fullmatch(str(verdict.given.value))
    if variable is None or variable[1] not in unset:
        return verdict
    if verdict.kind == "refused":
        return Verdict(verdict.given, "anyway", None, f"not set while ${variable[1]} is not")
    key = keys.get(verdict.home or "")
    if key is None or key.type_name in (*TEXTS, "bool"):
        return verdict
    text = f"${variable[1]} is not set, so the shell passes nothing; must be {key.type_name}"
    return Verdict(verdict.given, "wrong", verdict.home, text)


def composed(verdicts: Iterable[Verdict], schema: type, verl: VerlDefaults | None, base: Iterable[Given] = ()) -> Any:
    """The configuration that a run would make of the settings, and notes about verl's defaults in it.

    `base`: settings of agentrl's own files below them.
    """
    taken = [verdict.given for verdict in verdicts if verdict.kind in ("same", "moved", "differs", "own")]
    settings = list(_accepted([*base, *taken], schema))
    config = to_object(on_defaults(settings, verl), schema)
    return config, [] if verl is None else verl.finish(config, {setting.path for setting in settings})


def complaints(config: Any) -> Iterator[tuple[str, bool]]:
    """What is wrong, or worth knowing, only when settings come together: (line, whether it stops a run).

    It is said by the checks of a run, without those that look for files.
    """
    for check in CHECKS.get(type(config), SETTINGS):
        sections = sections_for(check, config)
        if sections is None or check.__module__ in OF_FILES:
            continue
        try:
            note = check(**sections)
        except UserError as error:
            yield str(error), True
        else:
            if note:
                yield note, False


def trouble_here(config: Any, folders: Sequence[Path]) -> Iterator[tuple[str, bool]]:
    """What a run would say of the files that are on this machine, in the same form; it changes the configuration.

    A module that is not found stops nothing: the script may run where it is.
    """
    from agentrl.doctor.preflight import preflight_here

    try:
        for note in preflight_here(config, folders):
            yield note, False
    except UserError as error:
        yield str(error), not isinstance(error.__cause__, ModuleNotFoundError)


def _accepted(settings: Iterable[Given], schema: type) -> Iterator[Setting]:
    reader, keys = Reader(schema), schema_keys(schema)
    for given in settings:
        path, value = given.path, given.value
        if INTERPOLATION.search(str(value)):
            key = home(destination(path, keys), keys)
            if key is None or key.type_name not in TEXTS:
                continue
            value = INTERPOLATION.sub("?", str(value))  # set, to what only a shell knows
        yield from reader.read(path, value)


def _tree(settings: Iterable[Given]) -> DictConfig:
    tree = OmegaConf.create({})
    for given in settings:
        with suppress(OmegaConfBaseException, AttributeError, TypeError):
            OmegaConf.update(tree, given.path, given.value, merge=True, force_add=True)
    return tree
