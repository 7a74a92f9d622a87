"""The names of what is built in, read from source files: nothing is imported, so a list of choices needs no torch.

Invariant: a built-in object stands in its file under the decorator of its registry, with its names and marks as
literals: `@policy_loss("gspo", by_sequence=True)`. A new file in the folder is all that a new one needs.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent.parent


@dataclass(frozen=True)
class Declared:
    """One built-in object, as its source declares it."""

    module: str
    names: tuple[str, ...]
    """Its name, then its aliases."""
    marks: Mapping[str, Any]
    """Keyword arguments of the decorator that are literals."""
    keywords: frozenset[str]
    """Keyword-only parameters of a function."""


@cache
def declared(decorator: str, places: tuple[str, ...]) -> Mapping[str, Declared]:
    """By name, what the files and folders `places` of the package declare with `decorator`; aliases come last."""
    found = [item for place in places for file in _files(place) for item in _declared_in(file, decorator)]
    return {item.names[0]: item for item in found} | {name: item for item in found for name in item.names[1:]}


def _files(place: str) -> list[Path]:
    path = PACKAGE / place
    return [path] if path.suffix else sorted(path.rglob("*.py"))


def _declared_in(file: Path, decorator: str) -> Iterator[Declared]:
    text = file.read_text(encoding="utf-8")
    if f"@{decorator}(" not in text:
        return
    module = ".".join((PACKAGE.name, *file.relative_to(PACKAGE).with_suffix("").parts))
    for node in ast.parse(text).body:
        for call in _decorators(node, decorator):
            names = tuple(ast.literal_eval(arg) for arg in call.args)
            marks = {word.arg: value for word in call.keywords if word.arg for value in _literal(word.value)}
            keywords = [arg.arg for arg in node.args.kwonlyargs] if isinstance(node, ast.FunctionDef) else ()
            yield Declared(module.removesuffix(".__init__"), names, marks, frozenset(keywords))


def _literal(node: ast.expr) -> list[Any]:
    """The value in a list; an empty one where it is an expression."""
    try:
        return [ast.literal_eval(node)]
    except ValueError:
        return []


def _decorators(node: ast.stmt, name: str) -> list[ast.Call]:
    calls = [call for call in getattr(node, "decorator_list", []) if isinstance(call, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == name]
