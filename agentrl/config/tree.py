"""Settings as a flat list: composed YAML taken apart into `key = value`, under today's names."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentrl.config.elsewhere import pointer
from agentrl.config.keys import Key, ancestors, custom_place, home, nearest, schema_keys, schema_sections, typo_of
from agentrl.config.names import Setting, destination, lookup, may_be_null, reaches_into, translate, written
from agentrl.core.compatibility import Defaults
from agentrl.core.errors import UserError

REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
INTERPOLATION = re.compile(r"\$\{")
CHANGED, IN_FILE, ADDED = range(3)
"""How a setting came that is no key: by `name=value`, in a file, by `+name=value`."""

OmegaConf.register_new_resolver("quotient", lambda value, by: float(value) / float(by), replace=True)


class Reader:
    """Turns what people write into settings of a schema, and keeps the notes that arise."""

    def __init__(self, schema: type) -> None:
        self.keys: Mapping[str, Key] = schema_keys(schema)
        self.sections = schema_sections(schema)
        self.notes: dict[str, None] = {}  # a set in order of arrival: each note is said once
        self.given: dict[str, Any] = {}
        """Every setting so far, under the name that it was given by."""
        self.custom: dict[str, int] = {}
        """Names that are no keys, with the way they came: ADDED, IN_FILE or CHANGED."""

    def tree(self, config: DictConfig) -> list[Setting]:
        """Settings in composed YAML; those under old names come last, for presets use today's."""
        raw = OmegaConf.to_container(config, resolve=False)
        assert isinstance(raw, dict)
        settings = [found for name, value in raw.items() for found in self.read(str(name), value, config, IN_FILE)]
        return self.in_order(settings)

    def in_order(self, settings: Iterable[Setting], highest: int = 1) -> list[Setting]:
        """Settings of one file or command line so that the last one of a key counts; a note says which one does not.

        Orders above `highest` are equal to it.
        """
        ordered = sorted(settings, key=lambda setting: min(setting.order, highest))
        last = {setting.path: setting for setting in ordered}
        for one in ordered:
            wins = last[one.path]
            if one.order != wins.order and one.value != wins.value and not wins.delete:
                note = f"{one.path} is set under two names: {written(wins.value)} counts, not {written(one.value)}"
                self.notes[note] = None
        return ordered

    def read(self, path: str, value: Any, origin: DictConfig | None = None, way: int = CHANGED) -> Iterable[Setting]:
        """Settings that `path = value` makes: one, none, or those of a mapping's entries.

        `origin` is where interpolations of names that are gone are looked up. Names that are no keys go to `custom`;
        `note_custom` judges them. Raises UserError for a section without its keys.
        """
        if self._is_branch(path, value):
            for name, below in value.items():
                yield from self.read(f"{path}.{name}", below, origin, way)
            return
        self.given[path] = value
        empty = value is None or value == {}
        if path.endswith("._target_") and not self.known(path):
            return  # the class that another framework makes of a section
        if value == "???" or (empty and destination(path, self.keys) in self.sections):
            return  # OmegaConf's mark for "not set", or a section with nothing in it
        found = translate(path, value, self.keys)
        self.notes |= dict.fromkeys(found.notes)
        if not found.path:
            return
        new = self._rename_references(value, path, origin) if found.value is value else found.value
        if new != f"${{{found.path}}}":  # verl's rollout.prompt_length refers to what it is itself here
            yield Setting(self.place(found.path, value, way), self._coerced(found.path, new), found.order)

    def place(self, path: str, value: Any = None, way: int = CHANGED) -> str:
        """`path` if a key of that name exists, otherwise its place below `custom`. Raises UserError for a section."""
        if self.known(path):
            return path
        if path in self.sections:
            raise UserError(self._section_message(path, value))
        self.custom[path] = max(way, self.custom.get(path, way))
        return custom_place(path, self.keys) or path

    def note_custom(self, *, open_files: bool) -> list[str]:
        """Notes on the names that are no keys. Raises UserError for a name without a `+`, or like that of a key; files
        that are open to other names may have both."""
        typos = {name: typo for name in self.custom if (typo := typo_of(name, self.keys))}
        added = {name for name, way in self.custom.items() if way == ADDED and name not in typos}
        allowed = {name for name, way in self.custom.items() if way != CHANGED} if open_files else added
        for name in self.custom:
            if allowed.isdisjoint(ancestors(name)) or not custom_place(name, self.keys):
                raise UserError(self._unknown(name))
        others = [f"{name} (here {custom_place(name, self.keys)})" for name in self.custom if name not in typos]
        notes = [f"{name} is no key, so only your own code can read it: did you mean {typos[name]}?" for name in typos]
        return [*notes, *([f"for your own code: {', '.join(others)}"] if others else [])]

    def _unknown(self, name: str) -> str:
        guess = nearest(name, self.keys)
        known_elsewhere = pointer(name, self.keys)
        fix = known_elsewhere or (f"did you mean {guess}?" if guess else "--help-keys lists them all")
        place = None if known_elsewhere else custom_place(name, self.keys)
        own = f" (for your own code: {place})" if place and not typo_of(name, self.keys) else ""
        return f"unknown key {name}{own}: {fix}"

    def known(self, path: str) -> bool:
        """Whether a key of that name exists."""
        return home(path, self.keys) is not None

    def _is_branch(self, path: str, value: Any) -> bool:
        """Whether a mapping is taken apart: not where it is the value of a key."""
        whole = self.known(destination(path, self.keys)) and not reaches_into(path)
        return isinstance(value, dict) and bool(value) and not whole

    def _section_message(self, path: str, value: Any) -> str:
        below = [key.removeprefix(f"{path}.") for key in self.keys if key.startswith(f"{path}.")]
        return f"{path}={value}: {path} is a section; set one of its keys: {', '.join(below[:8])}"

    def _coerced(self, path: str, value: Any) -> Any:
        key = self.keys.get(path)
        if key and key.type_name == "bool" and value == "":
            return False  # a variable of a script that is not set
        bare = key and key.is_list and isinstance(value, str) and not INTERPOLATION.search(value)
        return [value] if bare else value

    def _rename_references(self, value: Any, path: str, origin: DictConfig | None) -> Any:
        """`${actor_rollout_ref.rollout.n}` becomes `${rollout.n}`; a name without a home becomes its value."""
        if not isinstance(value, str) or not INTERPOLATION.search(value):
            return value
        renamed = REFERENCE.sub(lambda match: "${" + (self._home_of(match[1], origin) or "") + "}", value)
        if "${}" not in renamed and len(INTERPOLATION.findall(value)) == len(REFERENCE.findall(value)):
            return renamed
        return value if origin is None else resolved(origin, path)

    def _home_of(self, reference: str, origin: DictConfig | None) -> str | None:
        target = destination(reference, self.keys)
        if self.known(target) or target in self.sections:
            return target
        return custom_place(target, self.keys) if self._is_custom(reference, target, origin) else None

    def _is_custom(self, reference: str, target: str, origin: DictConfig | None) -> bool:
        """Whether a name that is no key is set, and is not one that the table of names knows."""
        if lookup(target, object(), self.keys) is not None:
            return False
        if origin is None:
            return target in self.custom
        return OmegaConf.select(origin, reference, throw_on_resolution_failure=False) is not None


def resolved(config: DictConfig, path: str) -> Any:
    """The value at `path` with its interpolations carried out. Raises UserError where one leads nowhere."""
    try:
        value = OmegaConf.select(config, path)
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {str(error).splitlines()[0]}") from error
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def to_object(tree: DictConfig, schema: type) -> Any:
    """An object of the schema with the values of `tree`. Raises OmegaConfBaseException for a wrong type."""
    return OmegaConf.to_object(OmegaConf.merge(_defaults(schema), tree))


@cache
def _defaults(schema: type) -> DictConfig:
    """Made once a process, because it takes longer than the rest of a merge; `merge` copies it."""
    return OmegaConf.structured(schema)


def apply(settings: Iterable[Setting], onto: DictConfig) -> None:
    """Write settings into a tree, later ones over earlier ones."""
    for setting in settings:
        if setting.delete:
            _delete(onto, setting.path)
        else:
            OmegaConf.update(onto, setting.path, setting.value, merge=True, force_add=True)


def without_nulls(settings: Iterable[Setting], schema: type) -> list[Setting]:
    """The settings above a framework's defaults without nulls, which leave most keys unset there."""
    keys = schema_keys(schema)
    return [one for one in settings if one.delete or one.value is not None or may_be_null(one.path, keys)]


def on_defaults(settings: Iterable[Setting], defaults: Defaults | None) -> DictConfig:
    """A tree of a framework's defaults, where there are any, and settings over them: there, 0 steps of warm-up leave it
    to a ratio."""
    tree = OmegaConf.create({})
    if defaults is not None:
        settings = [one for one in settings if one.order or one.value != 0 or not one.path.endswith(".lr_warmup_steps")]
        apply([Setting(path, value) for path, value in defaults.values().items()], tree)
    apply(settings, tree)
    return tree


def _delete(config: DictConfig, path: str) -> None:
    parent, _, leaf = path.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    if isinstance(node, DictConfig):
        node.pop(leaf, None)
