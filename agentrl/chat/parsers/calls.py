"""What the formats share: reading JSON with an error that helps, checking a call, typing a bare value."""

import json
from collections.abc import Sequence
from typing import Any

from agentrl.chat.message import Call, call_id
from agentrl.chat.template import Tools

EXCERPT = 30
UNKNOWN = "unknown"
_PYTHON_CONSTANTS = {"True": True, "False": False, "None": None}  # as Jinja prints them


class Malformed(Exception):
    """A call cannot be read; the message is for the model."""


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# strict=False: models put bare newlines into strings, and what they mean is clear.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_constant)


def read_json(text: str, at: int = 0) -> tuple[Any, int]:
    """The JSON value at `at` (white space skipped) and the position after it. Raises Malformed."""
    start = at + len(text[at:]) - len(text[at:].lstrip())
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise Malformed(f"invalid JSON at character {error.pos - at}, {_near(text, error.pos)}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise Malformed(f"invalid JSON: {error}") from error


def _near(text: str, at: int) -> str:
    return f"near {text[at : at + EXCERPT]!r}" if at < len(text) else "at the end"


def make_call(value: Any, seed: str, index: int, *, identity: str | None = None) -> Call:
    """A call out of a decoded `{"name": ..., "arguments": {...}}`. Raises Malformed."""
    if not isinstance(value, dict):
        raise Malformed(f"expected a JSON object, got {type(value).__name__}")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise Malformed('the key "name" is missing or not a string')
    arguments = value.get("arguments", value.get("parameters", {}))
    return typed_call(name, arguments, seed, index, identity=identity)


def typed_call(name: str, arguments: Any, seed: str, index: int, *, identity: str | None = None) -> Call:
    """A call whose arguments, possibly JSON within a string, must be an object. Raises Malformed."""
    if isinstance(arguments, str):
        arguments = read_whole_json(arguments)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise Malformed(f'the arguments of "{name}" must be a JSON object, got {type(arguments).__name__}')
    return Call(identity or call_id(seed, index), name, arguments)


def broken(reason: str, seed: str, index: int, *, expected: str, name: str = UNKNOWN) -> Call:
    """A call that could not be read, with the mend for the model."""
    return Call(
        call_id(seed, index), name, None, f"Tool call {index + 1} is malformed: {reason}. Write it as {expected}"
    )


def join_text(pieces: Sequence[str]) -> str:
    """The text around calls: none of it lost, white space next to the calls dropped."""
    first, *rest = pieces
    return "\n".join([*([first.rstrip()] if first.strip() else []), *(p.strip() for p in rest if p.strip())])


def convert(value: str, name: str, key: str, tools: Tools) -> Any:
    """A bare value as the tool's schema types it; without a schema, JSON if it reads as such, else text."""
    if _is_text(_property(name, key, tools)):
        return value
    if value.strip() in _PYTHON_CONSTANTS:
        return _PYTHON_CONSTANTS[value.strip()]
    try:
        converted = read_whole_json(value)
    except Malformed:
        return value
    return value if isinstance(converted, str) else converted


def read_whole_json(text: str) -> Any:
    """JSON and nothing after it. Raises Malformed."""
    value, end = read_json(text)
    if text[end:].strip():
        raise Malformed(f"unexpected text after the JSON at character {end}, {_near(text, end)}")
    return value


def _property(name: str, key: str, tools: Tools) -> dict[str, Any]:
    for tool in tools or ():
        function = tool.get("function", tool)
        if function.get("name") == name:
            schema = (function.get("parameters") or {}).get("properties", {}).get(key)
            return schema if isinstance(schema, dict) else {}
    return {}


def _is_text(schema: dict[str, Any]) -> bool:
    kind = schema.get("type")
    return (
        kind == "string" or (isinstance(kind, list) and set(kind) == {"string"}) or ("enum" in schema and kind is None)
    )
