"""What there is to know about one name: a key, a section, or another framework's name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agentrl.config.choices import OPEN, words_of
from agentrl.config.elsewhere import pointer
from agentrl.config.keys import Key, ancestors, home, nearest, schema_keys, schema_sections
from agentrl.config.names import destination, lookup, table
from agentrl.core.compatibility import Layer, layers
from agentrl.core.errors import UserError
from agentrl.core.extensions import load_plugins

REASONS = ("silent", "ignored", "refused")


@dataclass
class Explanation:
    """All of it, as data."""

    name: str
    commands: list[str] = field(default_factory=list)
    """Commands that take the key."""
    key: Key | None = None
    section: type | None = None
    below: list[str] = field(default_factory=list)
    """A section's keys."""
    words: tuple[str, ...] = ()
    own: tuple[str, str] | None = None
    """How the key names something of the user's own, and how that is written."""
    old_names: list[str] = field(default_factory=list)
    elsewhere: list[tuple[str, str]] = field(default_factory=list)
    """Another framework's defaults, ("in NAME", default), and what it means by the key, ("unlike NAME", difference)."""
    fates: list[tuple[str, str, str]] = field(default_factory=list)
    """(name, with a value where it holds for that one; refused, ignored, ...; why) of a name that is no key."""


def explain(name: str, schemas: Mapping[str, type]) -> list[Explanation]:
    """Everything that `name` (perhaps `name=value`) means to the commands of `schemas`. Raises UserError for nothing.

    Commands that mean the same by it share an explanation.
    """
    path = name.partition("=")[0].lstrip("+~")
    found: dict[str, Explanation] = {}
    for command, schema in schemas.items():
        explanation = _explain(path, schema) if _may_take(path, schema, schemas) else None
        if explanation is not None:
            same = found.setdefault(repr((explanation.key, explanation.fates)), explanation)
            same.commands.append(command)
    if not found:
        raise UserError(_nothing(path, schemas))
    return [e for e in found.values() if e.key or e.section] or [*found.values()]


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
        return Explanation(
            key.path,
            key=key,
            own=_own_form(key.path),
            words=words_of(key.path),
            old_names=sorted(old_names(key.path, keys)),
            elsewhere=[fact for layer in layers() for fact in _elsewhere(layer, key.path, schema)],
            fates=[fate for fate in _fates(target, keys) if "=" in fate[0]],
        )
    if target in sections:
        below = [key for key in keys if key.rpartition(".")[0] == target]
        return Explanation(target, section=sections[target], below=below, fates=list(_fates(path, keys)))
    fates = list(_fates(target, keys)) or [(text, "elsewhere", "") for text in (pointer(path, keys),) if text]
    return Explanation(path, fates=fates) if fates else None


def _own_form(path: str) -> tuple[str, str] | None:
    if path not in OPEN:
        return None
    load_plugins()
    registry = OPEN[path].registry
    return f"{registry.own_forms} with @agentrl.{registry.decorator}", registry.contract.written


def _elsewhere(layer: Layer, path: str, schema: type) -> Iterator[tuple[str, str]]:
    yield from ((f"in {layer.name}", default) for default in layer.defaults_of(path, schema))
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


def _fates(path: str, keys: Mapping[str, Key]) -> Iterator[tuple[str, str, str]]:
    """Entries for the name, for single values of it, and for names below it."""
    entry = lookup(path, object(), keys)
    if entry is not None and entry.action != "moved":
        yield entry.name, entry.action, entry.text
    for other in table().values():
        name = other.name.partition("=")[0]
        if other is not entry and (name == path or name.startswith(f"{path}.")) and other.action in REASONS:
            yield other.name, other.action, other.text
        elif other.action == "moved" and name == path and "=" in other.name:
            yield other.name, "moved", other.text


def _nothing(path: str, schemas: Mapping[str, type]) -> str:
    known = [key for schema in schemas.values() for key in (*schema_keys(schema), *schema_sections(schema)) if key]
    guess = nearest(path, [*dict.fromkeys(known), *(entry.name for entry in table().values() if "=" not in entry.name)])
    places = " or ".join(["here", *(f"in {layer.name}" for layer in layers())])
    return f"{path}: no such key, {places}; " + (f"did you mean {guess}?" if guess else "see --help-keys")
