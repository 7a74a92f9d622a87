"""What there is to know about one name: a key, a section, or another framework's name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agentrl.config.choices import OPEN, words_of
from agentrl.config.elsewhere import pointer
from agentrl.config.keys import Key, ancestors, home, nearest, schema_keys, schema_sections
from agentrl.config.names import destination, lookup, table, written
from agentrl.core.compatibility import Layer, Rename, layers
from agentrl.core.errors import UserError
from agentrl.core.extensions import load_plugins

REASONS = ("silent", "ignored", "refused")
IN = "in "
"""Begins the label of another framework's default."""
Fact = tuple[str, str]
"""A label and a text."""


@dataclass
class Explanation:
    """All of it, for a person to read."""

    name: str
    facts: list[Fact]
    is_setting: bool = True
    """Whether it is a key or a section; otherwise the facts say what became of the name."""
    commands: list[str] = field(default_factory=list)
    """Commands that take the key."""


def explain(name: str, schemas: Mapping[str, type]) -> list[Explanation]:
    """Everything that `name` (perhaps `name=value`) means to the commands of `schemas`. Raises UserError for nothing.

    Commands that mean the same by it share an explanation, with another framework's default for the first of them.
    """
    path = name.partition("=")[0].lstrip("+~")
    found: dict[str, Explanation] = {}
    for command, schema in schemas.items():
        explanation = _explain(path, schema) if _may_take(path, schema, schemas) else None
        if explanation is not None:
            own = [fact for fact in explanation.facts if not fact[0].startswith(IN)]
            found.setdefault(repr(own), explanation).commands.append(command)
    if not found:
        raise UserError(_nothing(path, schemas))
    return [each for each in found.values() if each.is_setting] or [*found.values()]


def _may_take(path: str, schema: type, schemas: Mapping[str, type]) -> bool:
    """Whether the section of a name is the schema's, or no schema's."""
    for layer in layers():
        path = path.removeprefix(layer.prefix)
    sections = {one: {*schema_sections(one)} for one in (schema, *schemas.values())}
    root = path.partition(".")[0]
    return root in sections[schema] or not any(root in each for each in sections.values())


def _explain(path: str, schema: type) -> Explanation | None:
    keys, sections = schema_keys(schema), schema_sections(schema)
    target = destination(path, keys)
    if key := home(target, keys):
        fates = [_told(entry) for entry in _fates(target, keys) if "=" in entry.name]
        return Explanation(key.path, [*_key_facts(key, schema), *fates])
    if target in sections:
        about = " ".join((sections[target].__doc__ or "").split())
        below = ", ".join(key for key in keys if key.rpartition(".")[0] == target)
        return Explanation(target, [("section", about), ("keys", below), *map(_told, _fates(path, keys))])
    fates = [*map(_told, _fates(target, keys))] or [("elsewhere", text) for text in (pointer(path, keys),) if text]
    return Explanation(path, fates, is_setting=False) if fates else None


def _key_facts(key: Key, schema: type) -> Iterator[Fact]:
    """Type, default and meaning of a key, its other names, and its meaning to other frameworks."""
    yield "type", " | ".join(words_of(key.path)) or key.type_name
    if key.path in OPEN:
        load_plugins()
        registry = OPEN[key.path].registry
        yield "or", f"{registry.own_forms} with @agentrl.{registry.decorator}"
        yield "written", registry.contract.written
    yield from (("default", written(key.default)), ("meaning", key.doc))
    for layer in layers():
        yield from _elsewhere(layer, key.path, schema)
    if names := sorted(old_names(key.path, schema_keys(schema))):
        yield "old names", ", ".join(names)


def _elsewhere(layer: Layer, path: str, schema: type) -> Iterator[Fact]:
    yield from ((f"{IN}{layer.name}", default) for default in layer.defaults_of(path, schema))
    noted = [entry for entry in layer.renames().values() if entry.action == "noted"]
    differences = [*layer.differences().items()]
    differences += [(entry.name, f"{entry.name.rpartition('.')[2]}: {entry.text}") for entry in noted]
    yield from ((f"unlike {layer.name}", text) for name, text in differences if name.partition("=")[0] == path)


def old_names(path: str, keys: Mapping[str, Key]) -> set[str]:
    """All other names of the key `path`, for any value."""
    found: set[str] = set()
    fresh = {path}
    while fresh:
        fresh = {name for new in fresh for name in _one_back(new)} - found
        found |= fresh
    return {name for name in found if destination(name, keys) == path and name != path}


def _one_back(path: str) -> Iterator[str]:
    above = set(ancestors(path))
    for entry in table().values():
        again = f"{path}.".startswith(f"{entry.name}.")  # a name below its own target would lead on for ever
        if entry.action == "moved" and not again and "=" not in entry.name and entry.target in above:
            yield entry.name + path[len(entry.target) :]


def _fates(path: str, keys: Mapping[str, Key]) -> Iterator[Rename]:
    """Entries for the name, for single values of it, and for names below it."""
    entry = lookup(path, object(), keys)
    if entry is not None and entry.action != "moved":
        yield entry
    for other in table().values():
        name, value, _ = other.name.partition("=")
        told = other.action in REASONS and other is not entry
        if (told and f"{name}.".startswith(f"{path}.")) or (other.action == "moved" and name == path and value):
            yield other


def _told(entry: Rename) -> Fact:
    return entry.action, f"{entry.name}{': ' if entry.text else ''}{entry.text}"


def _nothing(path: str, schemas: Mapping[str, type]) -> str:
    known = [key for schema in schemas.values() for key in (*schema_keys(schema), *schema_sections(schema)) if key]
    guess = nearest(path, [*dict.fromkeys(known), *(entry.name for entry in table().values() if "=" not in entry.name)])
    places = " or ".join(["here", *(f"in {layer.name}" for layer in layers())])
    return f"{path}: no such key, {places}; " + (f"did you mean {guess}?" if guess else "see --help-keys")
