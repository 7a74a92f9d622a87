"""Values that JSON in UTF-8 can carry, and replacements for all others.

Python's text and numbers hold more than a file, a tokenizer or another process takes: half a surrogate pair, an integer
of more digits than Python prints, infinity, nesting without end. A model may write any of them, and so may a tool.

Invariants:
- `complaint` finds everything that `to_json` would have to change;
- `to_json` raises for nothing that is in a value.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

DEEPEST = 64
"""Levels of nesting."""
MOST_BITS = 14_000
"""Size of an integer: 4,214 digits. Python prints no more than 4,300, and a tool may add to it."""
HALF = "\ufffd"
"""Stands for half a surrogate pair."""

Plain = Callable[[Any], Any]
"""Turns an object that JSON does not know into one that it knows."""


def listed(value: Any) -> Any:
    """An array as lists, any other object as its repr."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def whole(text: str) -> str:
    """The text as UTF-8 can carry it: two halves of a pair become one character, a single half becomes U+FFFD."""
    if text.isascii() or not _halved(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def complaint(value: Any) -> str | None:
    """The mistake in JSON-like arguments, in words for the model that wrote them; None: there is none."""
    level: list[tuple[str, Any]] = [("", value)]
    for _ in range(DEEPEST):
        for place, item in level:
            if wrong := _wrong(item):
                return f"{repr(place) if place else 'the value'} {wrong}"
        level = [child for place, item in level for child in _children(place, item)]
        if not level:
            return None
    return f"the arguments are nested more than {DEEPEST} levels deep"


def to_json(value: Any, plain: Plain = listed, **style: Any) -> str:
    """JSON that UTF-8 can carry. Where a part of the value cannot be written it is replaced, and nothing else is.

    `plain` is asked for objects that JSON does not know; `style` goes to `json.dumps`.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=plain, **style)
        text.encode()
    except Exception:  # `plain` and the objects it meets are other people's code
        return json.dumps(cleaned(value, plain), ensure_ascii=False, **style)
    return text


def encoded(value: Any) -> bytes:
    """`to_json` in UTF-8 without spaces, several times as fast where the value is plain."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return to_json(value, separators=(",", ":")).encode()


def cleaned(value: Any, plain: Plain = listed, above: tuple[int, ...] = ()) -> Any:
    """A copy that JSON in UTF-8 can carry: not a number and infinity become None, long integers tell their length.

    `above`: the ids of the objects that `value` is in; what is in itself, or too deep, is left out.
    """
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, bool | None):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= MOST_BITS else f"<an integer of {value.bit_length()} bits>"
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if len(above) == DEEPEST or id(value) in above:
        return "<nested too deep>"
    inside = (*above, id(value))
    if isinstance(value, Mapping):
        return {_key(key): cleaned(item, plain, inside) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item, plain, inside) for item in value]
    return cleaned(_plain(value, plain), plain, inside)


def _plain(value: Any, plain: Plain) -> Any:
    try:
        return plain(value)
    except Exception:  # someone else's class
        return f"<{type(value).__name__}>"


def _key(key: Any) -> str:
    name = cleaned(key) if isinstance(key, str | bool | int | float | None) else _plain(key, str)
    return whole(name) if isinstance(name, str) else json.dumps(name)


def _wrong(item: Any) -> str | None:
    if isinstance(item, str):
        return f"holds half of a surrogate pair ({_halved(item)}): write the whole character" if _halved(item) else None
    if isinstance(item, int):
        return "is an integer of more than 4,200 digits" if item.bit_length() > MOST_BITS else None
    if isinstance(item, float):
        return None if math.isfinite(item) else "is too large for a number, or not a number"
    if isinstance(item, dict) and any(isinstance(key, str) and _halved(key) for key in item):
        return "has a name with half of a surrogate pair in it: write the whole character"
    return None


def _halved(text: str) -> str | None:
    """The first half pair in a text, as JSON spells it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"\\u{ord(text[error.start]):04x}"
    return None


def _children(place: str, item: Any) -> Iterator[tuple[str, Any]]:
    """Named like the argument they are a part of."""
    if isinstance(item, dict):
        for key, child in item.items():
            yield place or str(key), child
    elif isinstance(item, list):
        for child in item:
            yield place, child
