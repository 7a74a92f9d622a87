"""Splits test scripts that need the solution's own process, as far as possible.

`assert f(2) == 4` goes in as a report of f(2), and the 4 stays here. All the same the report, and everything else in
such a script, is the word of a process that the solution shares: the verdict is forgeable.
"""

import ast
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentrl.core.errors import UserError
from agentrl.rewards.code.values import MALFORMED, decode, holds

MIRRORED = {"Eq": "Eq", "NotEq": "NotEq", "Lt": "Gt", "LtE": "GtE", "Gt": "Lt", "GtE": "LtE", "Is": "Is"}
"""The comparison with its sides swapped."""


def parsed(source: str) -> ast.Module:
    """The tree of a script. Raises UserError on one that is no Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"the row's assert_case is no Python ({error}): correct the row") from None


def conditions(statement: ast.Assert) -> list[ast.expr]:
    """The parts of a conjunction, or the one condition."""
    test = statement.test
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def with_literal(test: ast.expr) -> tuple[str, ast.expr, Any] | None:
    """A comparison with a literal: its name, the other side, the literal; None for another condition."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    name, left, right = type(test.ops[0]).__name__, test.left, test.comparators[0]
    for operator, value, literal in ((name, left, right), (MIRRORED.get(name), right, left)):
        with suppress(*MALFORMED):
            if operator is not None:
                return operator, value, ast.literal_eval(literal)
    return None


@dataclass(frozen=True)
class ReportCheck:
    """The condition for one report."""

    operator: str
    expected: Any = None
    pair: bool = False
    """The report has both sides, or a verdict when neither has a plain form."""

    def passes(self, forms: Sequence[Any]) -> bool:
        """Whether it holds of the encoded values. Raises one of MALFORMED."""
        if not self.pair:
            (form,) = forms
            return holds(self.operator, decode(form), self.expected)
        if len(forms) == 1:
            return forms[0] is True
        left, right = forms
        return holds(self.operator, decode(left), decode(right))


class TestScript(ast.NodeTransformer):
    """A script as the sandbox gets it, and the checks that stay behind."""

    __test__ = False

    def __init__(self, source: str, report: str) -> None:
        """`report` is the name that the reporting function has there. Raises UserError on a script that is no Python.

        Asserts within `try` stay as they are: something may wait for their exception.
        """
        tree = parsed(source)
        self.report = report
        self.checks: list[ReportCheck] = []
        self.due: set[int] = set()
        """Numbers of the checks at the top of the script, which a run to the end has reached."""
        self._top = frozenset(tree.body)
        self.source = ast.unparse(ast.fix_missing_locations(self.visit(tree)))

    def passes(self, reports: Sequence[Sequence[Any]]) -> bool:
        """Whether every report holds, and none is missing that a run to the end has made."""
        try:
            verdicts = [self.checks[index].passes(forms) for index, *forms in reports]
            reached = {index for index, *_ in reports}
        except MALFORMED:
            return False
        return all(verdicts) and self.due <= reached and bool(reached or not self.checks)

    def visit_Try(self, node: ast.stmt) -> ast.stmt:
        """Left alone."""
        return node

    visit_TryStar = visit_Try

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        """One report for each part of a conjunction."""
        first, parts = len(self.checks), conditions(node)
        if node in self._top:
            self.due |= {*range(first, first + len(parts))}
        return [self._reporting(part) for part in parts]

    def _reporting(self, test: ast.expr) -> ast.stmt:
        number = ast.Constant(len(self.checks))
        if (found := with_literal(test)) is not None:
            check, shown = ReportCheck(found[0], found[2]), [found[1]]
        elif isinstance(test, ast.Compare) and len(test.ops) == 1:
            check = ReportCheck(type(test.ops[0]).__name__, pair=True)
            shown = [test.left, ast.Tuple(test.comparators, ast.Load()), _comparison(test.ops[0])]
        else:
            check, shown = ReportCheck("Is", True), [_truth(test)]
        self.checks.append(check)
        return ast.Expr(ast.Call(ast.Name(self.report, ast.Load()), [number, *shown], []))


def _truth(node: ast.expr) -> ast.expr:
    """`not not <node>`: unlike bool(), no name that a solution could take."""
    return ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), node))


def _comparison(op: ast.cmpop) -> ast.expr:
    """`lambda a, b: a <op> b`."""
    arguments = ast.arguments([], [ast.arg("a"), ast.arg("b")], None, [], [], None, [])
    return ast.Lambda(arguments, ast.Compare(ast.Name("a", ast.Load()), [op], [ast.Name("b", ast.Load())]))
