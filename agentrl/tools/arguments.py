"""Checks the arguments of a call; its messages let the model fix them."""

from collections.abc import Iterable
from typing import Any

from agentrl.core import json_text as writable
from agentrl.core.json_schema import Unchecked, compiled

MAX_COMPLAINTS = 3
MAX_VALUE_CHARACTERS = 80
TYPE_NAMES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


class ArgumentCheck:
    """The compiled schema of one tool's parameters. Raises WrongSchema."""

    def __init__(self, tool: str, parameters: dict[str, Any]) -> None:
        self.tool = tool
        self.schema = compiled(parameters)

    def complaint(self, arguments: Any) -> str | None:
        """None when the arguments fit; otherwise what is wrong, naming each parameter and what it should be."""
        if not isinstance(arguments, dict):
            return f"Error: the arguments of {self.tool!r} must be a JSON object, got {_shown(arguments)}."
        unwritable = writable.complaint(arguments)
        if unwritable is not None:
            return f"Error: wrong arguments for {self.tool!r}: {unwritable}."
        try:
            errors = self.schema.errors(arguments)
        except Unchecked as error:
            return f"Error: the arguments of {self.tool!r} cannot be checked: {error}."
        if not errors:
            return None
        problems = "; ".join(dict.fromkeys(_wording(error) for error in errors[:MAX_COMPLAINTS]))
        return f"Error: wrong arguments for {self.tool!r}: {problems}."


def _wording(error: Any) -> str:
    """One jsonschema.ValidationError in words."""
    where = _path(error.absolute_path)
    match error.validator:
        case "required":
            return _missing(error)
        case "additionalProperties":
            return _superfluous(error)
        case "type":
            return f"parameter {where!r} must be {_expected(error.schema)}, got {_shown(error.instance)}"
        case "enum":
            choices = ", ".join(map(repr, error.validator_value))
            return f"parameter {where!r} must be one of {choices}, got {_shown(error.instance)}"
        case "anyOf" | "oneOf":
            choices = " or ".join(_expected(option) for option in error.validator_value)
            return f"parameter {where!r} must be {choices}, got {_shown(error.instance)}"
    return f"parameter {where!r}: {_cut(error.message, 2 * MAX_VALUE_CHARACTERS)}"


def _missing(error: Any) -> str:
    # jsonschema reports each missing name apart, and only the message says which.
    absent = [name for name in error.validator_value if name not in error.instance]
    name = next(name for name in absent if error.message.startswith(repr(name)))
    expected = _expected(error.schema.get("properties", {}).get(name, {}))
    return f"parameter {_path([*error.absolute_path, name])!r} is missing (expected {expected})"


def _superfluous(error: Any) -> str:
    known = error.schema.get("properties", {})
    unknown = ", ".join(repr(_path([*error.absolute_path, name])) for name in error.instance if name not in known)
    return f"parameter {unknown} does not exist (known: {', '.join(known) or 'none'})"


def _expected(schema: Any) -> str:
    """The values that a schema allows, in a few words."""
    if not isinstance(schema, dict):
        return "a value"
    if "enum" in schema:
        return f"one of {', '.join(map(repr, schema['enum']))}"
    if "const" in schema:
        return repr(schema["const"])
    kind = schema.get("type", "a value")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _shown(value: Any) -> str:
    return f"{TYPE_NAMES.get(type(value), type(value).__name__)} {_cut(repr(value), MAX_VALUE_CHARACTERS)}"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def _path(keys: Iterable[str | int]) -> str:
    """`items[0].name`"""
    steps = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return "".join(steps).removeprefix(".")
