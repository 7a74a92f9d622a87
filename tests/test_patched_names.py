"""Names that tests and benchmarks replace: all of them are there. A type checker does not read strings."""

import ast
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[1]
OWN = ("agentrl", "agentrl_sandbox", "agentrl_verl")


def bound(tree: ast.Module) -> dict[str, str]:
    """The dotted path of each name that the file's imports bind to something of agentrl's."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {name: path for name, path in found.items() if path.partition(".")[0] in OWN}


def dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    """The path that an expression of names and dots stands for; None for any other."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, names)
        return base and f"{base}.{node.attr}"
    return names.get(node.id) if isinstance(node, ast.Name) else None


def patched(tree: ast.Module) -> Iterator[str]:
    """The path of each attribute that a call of `setattr` or `delattr` of pytest's replaces."""
    names = bound(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr"), keywords=[_, *_]):
                continue  # raising=False: the name may be missing
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr"), args=[ast.Constant(value=str(path)), *_]):
                if path.partition(".")[0] in OWN:
                    yield path
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[owner, ast.Constant(value=str(name)), _]):
                if base := dotted(owner, names):
                    yield f"{base}.{name}"


def missing(path: str) -> bool:
    """Whether nothing has this path; modules on the way are imported."""
    try:
        resolve_name(path)
    except AttributeError:
        return True
    except ImportError as error:
        return (error.name or "").partition(".")[0] in OWN
    return False


def test_names_that_tests_replace_exist() -> None:
    files = [file for folder in ("tests", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
    places = {path: file for file in files for path in patched(ast.parse(file.read_text()))}
    assert len(places) > 100
    assert [f"{file.relative_to(ROOT)}: {path}" for path, file in sorted(places.items()) if missing(path)] == []


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ('monkeypatch.setattr("agentrl.core.paths.no_such", 1)', True),
        ('monkeypatch.setattr("agentrl.no_such_module.name", 1)', True),
        ('monkeypatch.setattr(errors, "NoSuchError", 1)', True),
        ('monkeypatch.setattr(errors.UserError, "no_such", 1)', True),
        ('monkeypatch.setattr("agentrl.core.errors.UserError", 1)', False),
        ('monkeypatch.setattr(errors, "UserError", 1)', False),
        ('monkeypatch.setattr(errors, "NoSuchError", 1, raising=False)', False),
        ('monkeypatch.setattr(other, "name", 1)', False),
    ],
)
def test_a_name_that_is_gone_is_found(call: str, found: bool) -> None:
    tree = ast.parse(f"from agentrl.core import errors\n{call}")
    assert any(map(missing, patched(tree))) == found
