r"""Equality of answers as numbers, to a relative error of 1e-4, and of lists of them (ToRA, arXiv 2309.17452).

Where `\pi` stands in an answer, verl has Python evaluate it; here that means arithmetic, never names or calls.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

LONGEST = 1000
"""Characters of an answer that are compared."""
TOLERANCE = 1e-4
PI = "\\pi"
MONEY = re.compile(r"\$\d+")
PERCENT = re.compile(r"\d+(\.\d+)?\\?%$")
INTERVALS = {"": ("[", "]"), ".Ropen": ("[", ")"), ".Lopen": ("(", "]"), ".open": ("(", ")")}
"""sympy's names for intervals, after "Interval"."""
MATRIX = "\\begin{pmatrix}"
MATRIX_ENDS = ("\\\\begin{pmatrix}", MATRIX), ("\\\\end{pmatrix}", "\\end{pmatrix}")
ODD = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError)
"""What an answer that nobody thought of may raise."""
LARGEST_POWER_BITS = 4096

OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitXor: operator.xor,
}
SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
SEVERAL: dict[type[ast.expr], Callable[[Iterable[Any]], Any]] = {ast.List: list, ast.Tuple: tuple, ast.Set: set}


def math_equal(
    prediction: Any,
    reference: Any,
    include_percentage: bool = True,
    tolerance: float = TOLERANCE,
    timeout: float = 10.0,
    pi: float = math.pi,
) -> bool:
    """Whether two answers are equal as text, as numbers (a percentage too), or part by part. Raises one of ODD."""

    def same(one: Any, other: Any) -> bool:
        return math_equal(one, other, include_percentage, tolerance)

    said, truth = normalize(prediction, pi), normalize(reference, pi)
    if isinstance(said, str):
        said = said[:LONGEST]
        if isinstance(truth, str) and _same_text(said, truth):
            return True
    number, wanted = _number(said), _number(truth)
    if number is not None and wanted is not None:
        scales = (wanted / 100, wanted, wanted * 100) if include_percentage else (wanted,)
        return any(math.isclose(scaled, number, rel_tol=tolerance) for scaled in scales)
    if not said and said not in (0, False):
        return False
    return _same_parts(_interval(str(said).strip()), str(truth).strip(), same)


def normalize(answer: Any, pi: float = math.pi) -> Any:
    r"""Without a dollar or percent sign, without a number's base; with `\pi`, its value. Raises one of ODD."""
    if not isinstance(answer, str):
        return answer
    if MONEY.match(answer):
        return answer[1:]
    if PERCENT.match(answer):
        return answer.replace("\\%", "").replace("%", "")
    if "_" in answer:
        return int(float(answer.partition("_")[0]))
    return _with_pi(answer, pi) if PI in answer else answer


def arithmetic(text: str, pi: float = math.pi) -> Any:
    """The value of numbers, lists of them, + - * / // % ** and `pi`. Raises one of ODD."""
    try:
        return _value(ast.parse(text.lstrip(" \t"), mode="eval").body, pi)
    except (SyntaxError, MemoryError) as error:
        raise ValueError(f"no arithmetic: {text[:80]!r}") from error


def _with_pi(answer: str, pi: float) -> Any:
    text, *rest = answer.split(PI)
    for part in rest:
        text += f"{'' if text[-1:].isdigit() else 1}*{pi}{part}"
    try:
        return arithmetic(text, pi)
    except ODD:
        return text


def _same_text(said: str, truth: str) -> bool:
    return said.strip().lower() == truth.strip().lower() or said.replace(" ", "") == truth.replace(" ", "")


def _number(value: Any) -> float | None:
    text = str(value)
    try:
        return float(text.replace("{,}" if "{,}" in text else ",", ""))
    except ValueError:
        return None


def _interval(text: str) -> str:
    """`Interval.open(a, b)` as `(a, b)`."""
    for name, (opening, closing) in INTERVALS.items():
        if found := re.match(rf"Interval{re.escape(name)}\((.*)\)$", text):
            return f"{opening}{found[1]}{closing}"
    return text


def _same_parts(said: str, truth: str, same: Callable[[Any, Any], bool]) -> bool:
    if _undressed(said, truth):
        return True
    brackets = said[:1] + said[-1:], truth[:1] + truth[-1:]
    alike = brackets[0] == brackets[1] and brackets[0] in ("()", "(]", "[)", "[]")
    if alike and _all_same(said[1:-1].split(","), truth[1:-1].split(","), same):
        return True
    if "," in said and "," in truth and said.count(",") == truth.count(","):
        return _all_same([part.strip() for part in said.split(",")], [p.strip() for p in truth.split(",")], same)
    if said.startswith("Point") and (truth[0], truth[-1]) == ("(", ")"):
        return _all_same(said[said.find("(") + 1 : -1].split(","), truth[1:-1].split(","), same)
    return MATRIX in truth and _same_matrix(said, truth, same)


def _undressed(said: str, truth: str) -> bool:
    """Whether they are one text without brackets and braces, where the kinds of brackets do not differ."""
    square = said.startswith("[") and said.endswith("]") and not truth.startswith("(")
    round_ = said.startswith("(") and said.endswith(")") and not truth.startswith("[")
    if square or round_:
        said, truth = said.strip("[]()"), truth.strip("[]()")
    naked = str.maketrans("", "", "{}()")
    return said.translate(naked) == truth.translate(naked)


def _all_same(said: list[Any], truth: list[Any], same: Callable[[Any, Any], bool]) -> bool:
    if len(said) != len(truth):
        return False
    verdicts = [same(one, other) for one, other in zip(said, truth, strict=True)]  # all of them: each may raise
    return all(verdicts)


def _same_matrix(said: str, truth: str, same: Callable[[Any, Any], bool]) -> bool:
    if said.startswith("Matrix"):
        try:
            rows = arithmetic(said.removeprefix("Matrix"))
            return _all_same([item for row in rows for item in row], truth.split()[1:-1:2], same)
        except ODD:
            return False
    rows = arithmetic(said) if said.startswith("[") and said.endswith("]") else None
    if not isinstance(rows, list):
        return False
    for begin, end in zip(*MATRIX_ENDS, strict=True):
        truth = truth.removeprefix(begin).removesuffix(end)
    try:
        return _all_same(rows, [row.split("&") if "&" in row else row for row in truth.split("\\")], same)
    except ODD:
        return False


def _value(node: ast.expr, pi: float) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, complex):
        return node.value
    if isinstance(node, ast.Name) and node.id == "pi":
        return pi
    if isinstance(node, ast.UnaryOp) and type(node.op) in SIGNS:
        return SIGNS[type(node.op)](_value(node.operand, pi))
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return SEVERAL[type(node)](_value(item, pi) for item in node.elts)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, pi), _value(node.right, pi)
        return _power(left, right) if isinstance(node.op, ast.Pow) else OPERATIONS[type(node.op)](left, right)
    raise ValueError(f"no arithmetic: {ast.unparse(node)[:80]!r}")


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > LARGEST_POWER_BITS:
        raise ValueError("a power that is too large")
    return base**exponent
