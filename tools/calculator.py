"""A calculator: the simplest useful tool, without state.

Shows: `execute` is a plain method, so it runs in a thread and may block. It raises ModelError for a mistake of the
model: the model reads the message and can try again; the sample is not masked.
"""

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from agentrl.tools import BaseTool, ModelError

LONGEST_EXPRESSION = 200
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
LARGEST_POWER_BITS = 1024
"""Powers above this many bits are refused: 9**9**9 would take minutes and gigabytes."""

OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


class Calculator(BaseTool):
    """Works out an arithmetic expression: + - * / // % ** and parentheses."""

    def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        """Returns the value as text."""
        return calculate(parameters["expression"])


def calculate(expression: str) -> str:
    """The value of the expression. Raises ModelError if it has none. Never calls eval."""
    if len(expression) > LONGEST_EXPRESSION:
        raise ModelError(f"Error: the expression is longer than {LONGEST_EXPRESSION} characters.")
    try:
        plain = THOUSANDS.sub("", expression.strip())
        return _text(_value(ast.parse(plain, mode="eval").body))
    except ZeroDivisionError:
        raise ModelError("Error: division by zero.") from None
    except OverflowError:
        raise ModelError("Error: the result is too large.") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ModelError(f"Error: {expression!r} is not an arithmetic expression, like (2 + 3) * 4.") from None


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.UnaryOp) and type(node.op) in SIGNS:
        return SIGNS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _power(_value(node.left), _value(node.right))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    raise ModelError(f"Error: {ast.unparse(node)!r} is not allowed: use numbers, + - * / // % ** and parentheses.")


def _power(base: Any, exponent: Any) -> Any:
    bits = base.bit_length() if isinstance(base, int) else 1
    if abs(exponent) * bits > LARGEST_POWER_BITS:
        raise OverflowError
    value = base**exponent
    if isinstance(value, complex):
        raise ModelError("Error: a root of a negative number is not real.")
    return value


def _text(value: Any) -> str:
    if isinstance(value, int):
        return str(value)
    if value != value or value in (float("inf"), float("-inf")):
        raise OverflowError
    # Whole numbers without ".0"; ten digits hide the rounding of binary fractions.
    return f"{value:.10g}"
