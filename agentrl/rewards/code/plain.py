"""Values as plain JSON between sandbox and grader; sent into the sandbox as text, before the programs that use it.

Invariant: what is decoded is made of built-in types only, so no code of a solution runs when it is used.
"""

import collections
import datetime
import decimal
import fractions
import importlib
import json
import numbers
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

LONG_BITS = 1000
"""Integers above it travel in hexadecimal: decimal text of any length is not read everywhere."""
CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset)
MOST_COMPARISONS = 1 << 22


STANDARD: dict[type, Callable[[Any], list[Any]]] = {
    collections.Counter: lambda value: [dict(value)],
    collections.OrderedDict: lambda value: [list(value.items())],
    collections.defaultdict: lambda value: [None, dict(value)],
    collections.deque: lambda value: [list(value), value.maxlen],
    decimal.Decimal: lambda value: [str(value)],
    fractions.Fraction: lambda value: [value.numerator, value.denominator],
    datetime.date: lambda value: [value.year, value.month, value.day],
    datetime.datetime: lambda value: [*value.timetuple()[:6], value.microsecond],
    datetime.timedelta: lambda value: [value.days, value.seconds, value.microseconds],
    range: lambda value: [value.start, value.stop, value.step],
    bytearray: lambda value: [bytes(value)],
}
"""Types of the standard library that keep their type between sandboxes, by the arguments that make an equal one."""


ARRAYS = "?bBhHiIlLqQefdFDSU"
"""Numpy's types of numbers and text, by their characters, that Python's own values hold exactly."""


class Opaque(Exception):
    """A value without a plain form."""


def encode(value: Any, other: "Callable[[Any], Any] | None" = None) -> Any:
    """The plain form of a value as JSON, its type kept. A subclass counts as its base.

    `other` gives the form of what has none. Raises Opaque.
    """
    if value is None or isinstance(value, bool):
        return value
    if other and (type(value) in STANDARD or is_array(value)):
        return other(value)
    if isinstance(value, int):
        value = int.__add__(value, 0)
        return {"int": hex(value)} if value.bit_length() > LONG_BITS else value
    if isinstance(value, float):
        return float.__add__(value, 0.0)
    if isinstance(value, str):
        return "".join(str.__iter__(value))
    for kind in CONTAINERS:
        if isinstance(value, kind):
            return {kind.__name__: [encode(item, other) for item in kind.__iter__(value)]}
    if isinstance(value, dict):
        return {"dict": [[encode(key, other), encode(item, other)] for key, item in dict.items(value)]}
    if isinstance(value, bytes):
        return {"bytes": bytes.hex(value)}
    return other(value) if other else encode_other(value)


def standard(value: Any) -> Any:
    """The form of a value of one of STANDARD's types, or of numpy's; of others as `encode_other`."""
    if is_array(value):
        form = [value.dtype.str, encode(value.ravel().tolist())]
        return {"scalar": form} if type(value) is value.dtype.type else {"array": [*form, list(value.shape)]}
    kind = type(value)
    if kind not in STANDARD or getattr(value, "tzinfo", None) is not None:
        return encode_other(value)
    return {"standard": [kind.__name__, encode(STANDARD[kind](value), standard)]}


def encode_other(value: Any) -> Any:
    """Numbers and arrays of other libraries as the built-in ones."""
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if hasattr(type(value), "tolist"):
        plain = value.tolist()
        if type(plain) is not type(value):
            return encode(plain)
    if isinstance(value, numbers.Number):
        return float(value)  # type: ignore[arg-type]
    raise Opaque(type(value).__name__)


def is_array(value: Any) -> bool:
    """Whether it is an array or a scalar of numpy's that travels as one."""
    kind, numpy = type(value), sys.modules.get("numpy")
    if numpy is None or getattr(kind, "__module__", "") != "numpy":
        return False
    return (kind is numpy.ndarray or issubclass(kind, numpy.generic)) and value.dtype.char in ARRAYS


def _array(kind: str, items: list[Any], shape: list[int] | None = None) -> Any:
    numpy = importlib.import_module("numpy")
    if numpy.dtype(kind).char not in ARRAYS:
        raise ValueError(kind)
    made = numpy.array(items, kind)
    return made[0] if shape is None else made.reshape(shape)


def decode(form: Any, readers: "dict[str, Reader]") -> Any:
    """The value that `encode` was given. Raises what reading a forged form may raise."""
    if not isinstance(form, dict):
        return form
    ((kind, content),) = form.items()
    # One frame a level: with two, honest lists and mappings of 300 levels would exceed Python's limit of recursion.
    if kind == "dict":
        return mapping([(decode(key, readers), decode(value, readers)) for key, value in content])
    if kind in ("list", "tuple"):
        items = [decode(item, readers) for item in content]
        return items if kind == "list" else tuple(items)
    return readers[kind](content, partial(decode, readers=readers))


def distinct(items: list[Any]) -> list[Any]:
    """Keys of a hash table. Raises ValueError where so many collide that it would take seconds to make: forged ones."""
    equal: dict[int, list[Any]] = collections.defaultdict(list)
    for item in items:
        equal[hash(item)].append(item)
    if sum(len(same) * sum(map(_size, same)) for same in equal.values() if len(same) > 1) > MOST_COMPARISONS:
        raise ValueError("these keys collide")
    return items


def _size(key: Any) -> int:
    """About how much it takes to compare a key."""
    if isinstance(key, (tuple, frozenset)):
        return 1 + sum(map(_size, key))
    return 1 + key.bit_length() // LONG_BITS if isinstance(key, int) else 1


def mapping(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """The mapping of these pairs. Raises ValueError as `distinct`."""
    distinct([key for key, _ in pairs])
    return dict(pairs)


def _standard(kind: str, args: list[Any]) -> Any:
    return {known.__name__: known for known in STANDARD}[kind](*args)


Reader = Callable[[Any, Callable[[Any], Any]], Any]
"""(content of a form, what decodes the forms in it) -> its value."""
READERS: dict[str, Reader] = {
    "int": lambda digits, _: int(digits, 16),
    "bytes": lambda digits, _: bytes.fromhex(digits),
    "complex": lambda parts, _: complex(*parts),
    "set": lambda items, read: set(distinct(list(map(read, items)))),
    "frozenset": lambda items, read: frozenset(distinct(list(map(read, items)))),
}
"""Values of built-in types, but for those that `decode` reads itself: lists, tuples and mappings."""
ALL_READERS: dict[str, Reader] = {
    **READERS,
    "standard": lambda content, read: _standard(content[0], read(content[1])),
    "array": lambda content, read: _array(content[0], read(content[1]), content[2]),
    "scalar": lambda content, read: _array(content[0], read(content[1])),
}
"""Values of all types, as they were: for sandboxes alone."""


def receive(source: int, size: int) -> bytes:
    """At most `size` bytes."""
    pieces = []
    while size and (piece := os.read(source, min(size, 1 << 20))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def send(channel: int, reply: Any, write: Any = os.write, dumps: Any = json.dumps) -> None:
    """All of it; the functions are bound here, before a solution can replace them."""
    data = memoryview(dumps(reply).encode())
    while data:
        data = data[write(channel, data) :]
