"""The schema as a flat table: every key with its type, default and docstring, and the nearest name to a wrong one."""

import ast
import difflib
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from dataclasses import field as member
from functools import cache, reduce
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from agentrl.config.schema.commands import SCHEMAS

M = TypeVar("M")

TYPO = 0.9
"""Likeness of two names from which on one is a misspelling of the other."""


@dataclass(frozen=True)
class Key:
    """One key that can be set."""

    path: str
    """Dotted path from the root: `rollout.val_kwargs.n`."""
    type: Any
    """Annotation."""
    default: Any
    section: type = member(compare=False)
    """The dataclass that has the field."""
    marks: tuple[Any, ...] = ()
    """What its annotation says besides the type; see `agentrl.config.schema.marks`."""

    @property
    def doc(self) -> str:
        """Docstring under the field, on one line."""
        return field_docs(self.section).get(self.path.rpartition(".")[2], "")

    @property
    def type_name(self) -> str:
        """The type as a person reads it: `float or null`, `list of str`."""
        return type_name(self.type)

    @property
    def is_list(self) -> bool:
        return get_origin(self.type) is list

    @property
    def is_open(self) -> bool:
        """Whether names below it are the user's own."""
        return any(get_origin(kind) is dict for kind in (self.type, *get_args(self.type)))


def type_name(annotation: Any) -> str:
    """`int | None` -> "int or null"."""
    if annotation is Any:
        return "any"
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is list:
        return f"list of {type_name(args[0])}"
    if origin is dict:
        return "mapping"
    if args:
        return " or ".join(type_name(arg) for arg in args)
    return "null" if annotation is NoneType else str(annotation.__name__)


@cache
def schema_keys(schema: type) -> Mapping[str, Key]:
    """Every key below the dataclass `schema`, by dotted path: section by section, in the order of the source."""
    return {key.path: key for path, section in sections_of(schema()) for key in _keys(path, section)}


@cache
def schema_sections(schema: type) -> Mapping[str, type]:
    """Every dataclass below `schema`, itself included under "", by dotted path."""
    return {path: type(section) for path, section in sections_of(schema())}


def sections_of(settings: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Settings and all sections below them, those that the user names included, each with its dotted path."""
    yield path, settings
    for field in fields(settings):
        key, value = f"{path}.{field.name}".lstrip("."), getattr(settings, field.name)
        below = {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {key: value}
        for place, section in below.items():
            if is_dataclass(section):
                yield from sections_of(section, place)


def _keys(path: str, section: Any) -> Iterator[Key]:
    kind: type = type(section)
    marks, hints = marks_of(kind), get_type_hints(kind)
    for name, default in ((field.name, getattr(section, field.name)) for field in fields(kind)):
        if not is_dataclass(default):
            yield Key(f"{path}.{name}".lstrip("."), hints[name], default, kind, marks[name])


@cache
def marks_of(schema: type) -> Mapping[str, tuple[Any, ...]]:
    """The marks on each field of a dataclass."""
    hints = get_type_hints(schema, include_extras=True)
    return {
        name: tuple(mark for part in (hint, *get_args(hint)) for mark in getattr(part, "__metadata__", ()))
        for name, hint in hints.items()
    }


def mark_in(marks: Iterable[Any], kind: type[M]) -> M | None:
    """The mark of a kind; None where there is none."""
    return next((mark for mark in marks if isinstance(mark, kind)), None)


@dataclass(frozen=True)
class Place(Generic[M]):
    """A setting whose key has a mark."""

    key: str
    owner: Any
    name: str
    mark: M

    @property
    def value(self) -> Any:
        return getattr(self.owner, self.name)

    @property
    def values(self) -> list[Any]:
        """Its value, or the members of a list; without null."""
        return [value for value in as_list(self.value) if value is not None]


def places(config: Any, kind: type[M]) -> Iterator[Place[M]]:
    """The settings of a configuration whose keys have a mark of a kind."""
    for path, section in sections_of(config):
        schema: type = type(section)
        for name, marks in marks_of(schema).items():
            if (mark := mark_in(marks, kind)) is not None:
                yield Place(f"{path}.{name}".lstrip("."), section, name, mark)


def marked(kind: type[M]) -> dict[str, M]:
    """The marks of a kind by key, of all commands."""
    found = {place.key: place.mark for schema in SCHEMAS.values() for place in places(schema(), kind)}
    return dict(sorted(found.items()))


def field_docs(schema: type) -> dict[str, str]:
    """Docstring under each field of a dataclass, inherited ones included; white space runs become one blank."""
    docs: dict[str, str] = {}
    for base in reversed(schema.__mro__[:-1]):
        docs |= _own_docs(base)
    return docs


@cache
def _own_docs(schema: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(schema))).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                docs[field.target.id] = " ".join(text.value.split())
    return docs


def value_at(config: Any, path: str) -> Any:
    """The value of a key; None where the configuration has no such key."""
    return reduce(lambda node, name: getattr(node, name, None), path.split("."), config)


def as_list(value: Any) -> list[Any]:
    """None: nothing; one thing: a list of it."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def home(path: str, keys: Mapping[str, Key]) -> Key | None:
    """The key that `path` sets: itself, or the open mapping that contains it. None when there is no such key."""
    for ancestor in ancestors(path):
        if key := keys.get(ancestor):
            return key if ancestor == path or key.is_open else None
    return None


def custom_place(path: str, keys: Mapping[str, Key]) -> str | None:
    """Where a setting is that only the user's own code reads: below `custom` of the nearest section with such a key."""
    for above in ancestors(path):
        section = above.rpartition(".")[0]
        place = f"{section}.custom" if section else "custom"
        if place in keys:
            return f"{place}.{path.removeprefix(f'{section}.')}"
    return None


def ancestors(path: str) -> Iterable[str]:
    """`a.b.c`, `a.b`, `a`."""
    parts = path.split(".")
    return (".".join(parts[:end]) for end in range(len(parts), 0, -1))


def nearest(path: str, keys: Iterable[str]) -> str | None:
    """The real key that `path` most likely means, mostly by its last part; None when none is like it."""
    best = max(keys, key=lambda key: _likeness(path, key), default=None)
    return best if best and _likeness(path, best) > 1.0 else None


def typo_of(path: str, keys: Iterable[str]) -> str | None:
    """The real key that differs from `path` by a letter or two."""
    guess = nearest(path, keys)
    return guess if guess and _ratio(path, guess) > TYPO else None


def _likeness(path: str, key: str) -> float:
    """0 to 3: how alike the last parts are, the words in them, and the whole paths."""
    leaf, other = path.rpartition(".")[2], key.rpartition(".")[2]
    words, others = set(leaf.split("_")), set(other.split("_"))
    return _ratio(leaf, other) + len(words & others) / len(words) + _ratio(path, key)


@cache
def _ratio(text: str, other: str) -> float:
    return difflib.SequenceMatcher(None, text.lower(), other.lower()).ratio()
