"""Values that came out of the sandbox, and their comparison with expected ones.

Invariant: a decoded value is made of built-in types only, so no code of a solution runs when it is compared.
"""

import json
import operator
from collections.abc import Callable
from typing import Any

from agentrl.rewards.code import plain
from agentrl.rewards.code.plain import READERS, Reader

MALFORMED = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, ArithmeticError)
"""The errors of reading a forged reply."""


class Opaque:
    """Stands for a value without a plain form: equal to nothing."""


OPAQUE = Opaque()


def _standard(kind: str, args: list[Any]) -> Any:
    """A value of the standard library's as the built-in one it equals. Its own class may take forever to make it."""
    if kind in ("Counter", "OrderedDict", "defaultdict"):
        return args[-1] if isinstance(args[-1], dict) else plain.mapping(args[-1])
    if kind == "Decimal":
        return float(args[0])
    if kind == "Fraction":
        return int(args[0]) / int(args[1])
    return args[0] if kind == "bytearray" and isinstance(args[0], bytes) else OPAQUE


VALUES: dict[str, Reader] = {
    **READERS,
    "scalar": lambda content, read: read(content[1])[0],
    "standard": lambda content, read: _standard(content[0], read(content[1])),
    "ref": lambda *_: OPAQUE,
    "opaque": lambda *_: OPAQUE,
}


def decode(form: Any) -> Any:
    """The value of a form out of a sandbox. Raises one of MALFORMED."""
    return plain.decode(form, VALUES)


def identical(left: Any, right: Any) -> bool:
    """`is`, for literals."""
    return type(left) is type(right) and bool(left == right)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Is": identical,
    "IsNot": lambda left, right: not identical(left, right),
    "In": lambda left, right: left in right,
    "NotIn": lambda left, right: left not in right,
}
"""Comparisons by their names in Python's syntax tree."""


def holds(name: str, left: Any, right: Any) -> bool:
    """Whether the comparison is true; false when the values cannot be compared."""
    try:
        return bool(OPERATORS[name](left, right))
    except MALFORMED:
        return False


def as_expected(value: Any, expected: Any) -> bool:
    """Whether a function's value is the expected one.

    `expected` is text, as verl's data has it: JSON, or what verl's own sandbox would print. Or it is the value itself.
    """
    if not isinstance(expected, str):
        return same_json(value, expected)
    if printed(value) == expected.rstrip("\n"):
        return True
    try:
        return same_json(value, json.loads(expected))
    except MALFORMED:
        return False


def same_json(value: Any, expected: Any) -> bool:
    """Equality of JSON values: lists and tuples are one thing, true and 1 are two, the keys of mappings are text."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, list | tuple) and isinstance(expected, list | tuple):
        return len(value) == len(expected) and all(map(same_json, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        left, right = _by_text(value), _by_text(expected)
        return left.keys() == right.keys() and all(same_json(left[key], right[key]) for key in left)
    return bool(value == expected)


def printed(value: Any) -> str | None:
    """The text that verl's wrapper prints for a value; None where it prints none."""
    try:
        return json.dumps(value) if value is None or isinstance(value, bool | list | tuple | dict) else str(value)
    except MALFORMED:
        return None


def _by_text(mapping: dict[Any, Any]) -> dict[str, Any]:
    return {key if isinstance(key, str) else json.dumps(key): value for key, value in mapping.items()}
