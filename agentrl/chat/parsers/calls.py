"""Shared by the formats: limits, reading JSON with an error that helps, checking a call, typing a bare value.

Every loop over a turn stops at one of the limits here, so that no text of any length holds up the event loop.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from agentrl.core.json_text import DEEPEST, complaint
from agentrl.trajectory.message import Call, call_id

MAX_CALLS = 128
"""Calls that are read of one turn; the rest of the turn gets one error."""
MAX_BROKEN = 16
"""Malformed calls that are explained in one turn; the rest of the turn gets one error."""
MAX_ARGUMENTS = 256
"""Arguments of one call, where the format spells each out."""
MAX_VALUES = 50_000
"""Separators (commas and opening brackets) of a call's JSON, where it is longer than as many characters."""
EXCERPT_CHARACTERS = 30
UNKNOWN = "unknown"
SPACE = re.compile(r"\s*+")
_PYTHON_CONSTANTS = {"True": True, "False": False, "None": None}  # as Jinja prints them
# What may decode to an infinite number; the lookbehind keeps the search linear.
_HUGE = re.compile(r"(?<!\d)\d{300}|\d[eE]\+?\d\d")


class Malformed(Exception):
    """A call cannot be read; the message is for the model."""

    def __init__(self, reason: str, name: str = UNKNOWN) -> None:
        super().__init__(reason)
        self.name = name
        """The tool's, where that much could be read."""


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Give the tool's name to the Malformed that the body raises."""
    try:
        yield
    except Malformed as error:
        raise Malformed(str(error), name) from error


def match_at(pattern: re.Pattern[str], text: str, at: int, missing: str) -> re.Match[str]:
    """The match of a pattern at a position. Raises Malformed for the reason `missing`."""
    found = pattern.match(text, at)
    if found is None:
        raise Malformed(missing)
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# strict=False: models put bare newlines into strings, and what they mean is clear.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_constant)


def skip_space(text: str, at: int, space: re.Pattern[str] = SPACE) -> int:
    """The position of the first character from `at` on that is no white space; `space`: what counts as it."""
    found = space.match(text, at)
    return found.end() if found else at


def read_json(text: str, at: int = 0) -> tuple[Any, int]:
    """The JSON value at `at` (white space skipped) and the position after it. Raises Malformed.

    If an object has a key twice, the last value counts.
    """
    if len(text) - at <= MAX_VALUES:
        return _decode(text, at)
    with suppress(Malformed):  # most calls are short, whatever follows them
        value, length = _decode(text[at : at + MAX_VALUES])
        if length < MAX_VALUES:
            return value, at + length
    if sum(text.count(separator, at) for separator in ",[{") > MAX_VALUES:
        raise Malformed(f"it has too many values: at most {MAX_VALUES:,}")
    return _decode(text, at)


def _decode(text: str, at: int = 0) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, skip_space(text, at))
    except json.JSONDecodeError as error:
        raise Malformed(f"invalid JSON at character {error.pos - at}, {near(text, error.pos)}: {error.msg}") from error
    except RecursionError as error:
        raise Malformed(f"it is nested too deeply: at most {DEEPEST} levels") from error
    except ValueError as error:
        raise Malformed(f"invalid JSON: {str(error).partition(';')[0]}") from error


def near(text: str, at: int) -> str:
    """Where a problem is, for an error message."""
    return f"near {text[at : at + EXCERPT_CHARACTERS]!r}" if at < len(text) else "at the end"


def stuck(text: str, at: int) -> str:
    """Why a call cannot be read further than this position."""
    start = skip_space(text, at)
    rest = text[start : start + EXCERPT_CHARACTERS]
    return f"cannot read it from {rest!r} on" if rest else "its closing tags are missing"


def make_call(value: Any, seed: str, index: int, *, identity: str | None = None, key: str = "name") -> Call:
    """A call out of a decoded `{"name": ..., "arguments": {...}}`; `key`: that of the name. Raises Malformed."""
    if not isinstance(value, dict):
        raise Malformed(f"expected a JSON object, got {type(value).__name__}")
    name = value.get(key)
    if not isinstance(name, str) or not name:
        raise Malformed(f'the key "{key}" is missing or not a string')
    arguments = value.get("arguments", value.get("parameters", {}))
    return typed_call(name, arguments, seed, index, identity=identity)


def typed_call(name: str, arguments: Any, seed: str, index: int, *, identity: str | None = None) -> Call:
    """A call whose arguments, possibly JSON within a string, must be an object. Raises Malformed.

    `seed`: the call as written.
    """
    written = seed
    if isinstance(arguments, str):
        written = f"{seed}{arguments}"  # an escape may hide another
        arguments = read_whole_json(arguments)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise Malformed(f'the arguments of "{name}" must be a JSON object, got {type(arguments).__name__}')
    _require_plain(name, arguments, written)
    return Call(identity or call_id(seed, index), name, arguments)


def _require_plain(name: str, arguments: dict[str, Any], written: str) -> None:
    """Nothing goes on that JSON and UTF-8 cannot say. Raises Malformed."""
    deep = written.count("[") + written.count("{") > DEEPEST
    doubtful = deep or _HUGE.search(written) or "\\u" in written or "\\U" in written or complaint(written)
    if doubtful and (wrong := complaint(name) or complaint(arguments)):
        raise Malformed(wrong)


def broken(reason: str, seed: str, index: int, *, expected: str, name: str = UNKNOWN) -> Call:
    """A call that could not be read, with the fix for the model."""
    return Call(
        call_id(seed, index),
        UNKNOWN if complaint(name) else name,
        None,
        f"Tool call {index + 1} is malformed: {reason}. Write it as {expected}",
    )


def too_many(calls: Sequence[Call], expected: str) -> Call | None:
    """The error that ends a turn with too many calls; None while there is room for another."""
    bad = sum(call.error is not None for call in calls)
    if len(calls) < MAX_CALLS and bad < MAX_BROKEN:
        return None
    limit = f"{MAX_CALLS} calls" if len(calls) >= MAX_CALLS else f"{MAX_BROKEN} malformed calls"
    return broken(f"a turn is read up to {limit}, and the rest of this one was not", "", len(calls), expected=expected)


def join_text(pieces: Sequence[str]) -> str:
    """The text around calls: none of it lost, white space next to the calls dropped."""
    first, *rest = pieces
    return "\n".join([*([first.rstrip()] if first.strip() else []), *(p.strip() for p in rest if p.strip())])


def read_whole_json(text: str) -> Any:
    """JSON and nothing after it. Raises Malformed."""
    value, end = read_json(text)
    if skip_space(text, end) < len(text):
        raise Malformed(f"unexpected text after the JSON at character {end}, {near(text, end)}")
    return value


def read_value(text: str) -> Any:
    """JSON, or True, False or None as Python prints them, and nothing after it. Raises Malformed."""
    word = text[:16].strip()
    return _PYTHON_CONSTANTS[word] if len(text) <= 16 and word in _PYTHON_CONSTANTS else read_whole_json(text)
