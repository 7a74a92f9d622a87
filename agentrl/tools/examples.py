"""Example arguments from a schema, to try a tool."""

from collections.abc import Mapping
from typing import Any

from agentrl.core.json_schema import Outlines

BY_TYPE = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "null": None}


def example_arguments(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the required parameters: the schema's own examples, defaults and words first, else by type."""
    value = _example(parameters, Outlines(parameters))
    return value if isinstance(value, dict) else {}


def _example(part: Any, outlines: Outlines) -> Any:
    schema = outlines.of(part)
    if schema.get("examples"):
        return schema["examples"][0]
    if "default" in schema:
        return schema["default"]
    return schema["enum"][0] if schema.get("enum") else _of_type(schema, outlines)


def _of_type(schema: Mapping[str, Any], outlines: Outlines) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        return {name: _example(properties.get(name), outlines) for name in schema.get("required") or []}
    if kind == "array":
        return [_example(schema.get("items"), outlines)] * max(1, schema.get("minItems", 1))
    if kind in ("integer", "number") and "minimum" in schema:
        return schema["minimum"]
    return BY_TYPE.get(kind)
