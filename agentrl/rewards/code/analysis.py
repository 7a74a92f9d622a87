"""Analyses the text of a test script: its calls of the solution, and how to run it without trusting the solution.

Three shapes: asserts that compare one call with one literal are judged here, from the call's value; other scripts are
run by a referee, in a sandbox without the solution; a few need the solution's own process, and their verdict is
forgeable.
"""

import ast
import builtins
import symtable
import sys
import typing
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from doctest import DocTestParser
from typing import Any

from agentrl.rewards.code.plain import Opaque, encode
from agentrl.rewards.code.script import conditions, parsed, with_literal
from agentrl.rewards.code.values import MALFORMED, decode, holds

TOGETHER = {"stdin", "input", "inspect", "mock", "patch", "monkeypatch", "asyncio", "globals", "locals", "eval", "exec"}
TOGETHER |= {"open", "solution", "pandas", "pd", "torch", "scipy"}
"""Names that act on the solution's process, and have no meaning in another one."""
RAISES = ("raises", "assertraises", "assertraisesregex")


@dataclass(frozen=True)
class CallCheck:
    """An assert that compares a call of the solution with a literal."""

    call: Sequence[Any]
    """[function, arguments, named arguments], in the form that the callee takes."""
    operator: str
    expected: Any

    def passes(self, answer: Any) -> bool:
        """Whether it holds of the callee's answer. Raises one of MALFORMED."""
        return holds(self.operator, decode(answer["value"]), self.expected)


@dataclass
class ScriptShape:
    """One script."""

    source: str
    tree: ast.Module
    checks: list[CallCheck] = field(default_factory=list)
    """The whole script, where it is asserts of this kind alone."""
    names: list[str] = field(default_factory=list)
    """Names that neither the script nor Python defines."""
    exceptions: list[str] = field(default_factory=list)
    """The names among them that it catches as exceptions."""
    together: bool = False
    """Whether it needs the solution's own process."""

    @property
    def asserts(self) -> bool:
        """Whether it has an assert."""
        return any(isinstance(node, ast.Assert) for node in ast.walk(self.tree))

    @property
    def forgeable(self) -> bool:
        """Whether one of the solution's own names helps to judge another, or itself."""
        known = {*self.exceptions, *sys.stdlib_module_names, "numpy", "np"}
        used = [name for name in self.names if name not in known]
        classes = [name for name in used if name[:1].isupper() and name != "Solution"]
        return self.together or (not self.checks and (len(used) > 1 or bool(classes)))


def read(source: str) -> ScriptShape:
    """The shape of a script. Raises UserError on one that is no Python."""
    tree = parsed(source)
    checks, names = _checks(tree), _free("\n".join([source, *_examples(tree)]))
    together = not checks and _together(tree, names)
    return ScriptShape(source, tree, checks, names, [n for n in names if n in _caught(tree)], together)


def _checks(tree: ast.Module) -> list[CallCheck]:
    found: list[CallCheck] = []
    for statement in tree.body:
        if not isinstance(statement, ast.Assert):
            return []
        checks = [_check(part) for part in conditions(statement)]
        if None in checks:
            return []
        found += filter(None, checks)
    return found


def _check(test: ast.expr) -> CallCheck | None:
    operator, value, expected = with_literal(test) or ("", test, None)
    with suppress(*MALFORMED, Opaque):
        if operator and (call := _call(value)) is not None:
            return CallCheck(call, operator, expected)
    return None


def _call(node: ast.expr) -> list[Any] | None:
    """`f(literals)`, where f is no name of Python's own; None for anything else. Raises one of MALFORMED, or Opaque."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or hasattr(builtins, node.func.id):
        return None
    if any(keyword.arg is None for keyword in node.keywords):
        return None
    args = [encode(ast.literal_eval(arg)) for arg in node.args]
    named = {str(keyword.arg): encode(ast.literal_eval(keyword.value)) for keyword in node.keywords}
    return [{"name": node.func.id}, args, named]


def _free(source: str) -> list[str]:
    """Global names that are read and nowhere bound, but for Python's own and those of annotations."""
    top = symtable.symtable(source, "tests.py", "exec")
    tables = [top]
    for table in tables:
        tables += table.get_children()
    symbols = [(s, table is top or s.is_global()) for table in tables for s in table.get_symbols()]
    bound = {s.get_name() for s, shared in symbols if shared and (s.is_assigned() or s.is_imported())}
    read = dict.fromkeys(s.get_name() for s, shared in symbols if shared and s.is_referenced())
    known = {*bound, *dir(builtins), *typing.__all__, "__file__"}
    return [name for name in read if name not in known]


def _examples(tree: ast.Module) -> Iterator[str]:
    """The statements of doctests."""
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    for text in texts:
        with suppress(ValueError, SyntaxError):
            for example in DocTestParser().get_examples(text):
                ast.parse(example.source)
                yield example.source


def _caught(tree: ast.Module) -> set[str]:
    handlers = [n.type for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler) and n.type is not None]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last(node.func).lower() in RAISES:
            handlers += node.args[:1]
    return {n.id for handler in handlers for n in ast.walk(handler) if isinstance(n, ast.Name)}


def _together(tree: ast.Module, names: Sequence[str]) -> bool:
    used = {_last(node) for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute)}
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names}
    imported |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    bases = {_last(base) for n in ast.walk(tree) if isinstance(n, ast.ClassDef) for base in n.bases}
    waits = any(isinstance(n, ast.Await | ast.AsyncFunctionDef) for n in ast.walk(tree))
    return waits or bool(TOGETHER & (used | imported)) or bool(bases & set(names))


def _last(node: ast.expr | ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
