"""Which keys the tests give a value: `section.key=...` in a text, or `Section(key=...)`."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from agentrl.config.keys import schema_sections

TESTS = Path(__file__).parents[1]
NAMES_ONLY = ("config/", "cli/", "docs/", "from_verl/reading/")
"""Folders whose tests read settings and names; what a value does is seen elsewhere."""
SETTING = re.compile(r"([a-z_]+\.[a-z_]+)=")


@cache
def settings() -> frozenset[tuple[str, str]]:
    """(`section` or its class, `key`) of each value that a test gives."""
    files = [file for file in TESTS.rglob("*.py") if not file.relative_to(TESTS).as_posix().startswith(NAMES_ONLY)]
    return frozenset(pair for file in files for node in ast.walk(ast.parse(file.read_text())) for pair in _of(node))


def _of(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        for name in SETTING.findall(node.value):
            section, _, key = name.partition(".")
            yield section, key
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        yield from ((node.func.id, keyword.arg) for keyword in node.keywords if keyword.arg)


def unchanged(schema: type, paths: Iterable[str]) -> set[str]:
    """Those of the keys that no test gives a value."""
    sections = schema_sections(schema)
    found = set()
    for path in paths:
        section, _, key = path.rpartition(".")
        names = {section.rpartition(".")[2], *(each.__name__ for each in sections[section].__mro__)}
        if not any((name, key) in settings() for name in names):
            found.add(path)
    return found
