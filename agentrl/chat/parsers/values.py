"""Values that a format writes without quotes, typed by the tool's schema."""

from typing import Any

from agentrl.chat.parsers.calls import Malformed, constant, read_whole_json, skip_space
from agentrl.chat.parsers.literals import Values, quiet
from agentrl.chat.template import Tools


def convert(value: str, name: str, key: str, tools: Tools) -> Any:
    """A bare value as the tool's schema types it; without a schema, JSON if it reads as such, else text."""
    return convert_by(schema_of(name, key, tools), value)


def convert_by(schema: dict[str, Any], value: str) -> Any:
    """A bare value as `schema`, {} for an unknown one, types it. Never raises."""
    if _is_text(schema):
        return value
    known = constant(value)
    if known is not None:
        return known[0]
    try:
        converted = read_whole_json(value)
    except Malformed:
        return _literal(value)
    return value if isinstance(converted, str) else converted


def _literal(value: str) -> Any:
    """A list or an object as Python prints it, which some templates do; all else is text."""
    start = skip_space(value, 0)
    if value[start : start + 1] not in ("[", "{"):
        return value
    try:
        with quiet():
            read, end = Values(value).read(start)
    except Malformed:
        return value
    return read if skip_space(value, end) == len(value) else value


def schema_of(name: str, key: str, tools: Tools) -> dict[str, Any]:
    """The schema of a tool's argument; {} where there is none."""
    for tool in tools or ():
        function = tool.get("function", tool)
        if function.get("name") == name:
            return part(part(part(function, "parameters"), "properties"), key)
    return {}


def part(schema: dict[str, Any], key: str) -> dict[str, Any]:
    """The schema under `key`, {} where there is none."""
    inner = schema.get(key)
    return inner if isinstance(inner, dict) else {}


def _is_text(schema: dict[str, Any]) -> bool:
    kind = schema.get("type")
    return (
        kind == "string" or (isinstance(kind, list) and set(kind) == {"string"}) or ("enum" in schema and kind is None)
    )
