"""Example arguments from a schema, to try a tool."""

from collections.abc import Mapping
from typing import Any

BY_TYPE = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "null": None}


def example_arguments(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the required parameters: the schema's own examples, defaults and words first, else by type."""
    value = _example(parameters, parameters)
    return value if isinstance(value, dict) else {}


def _example(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    schema = _resolved(schema, root)
    if schema.get("examples"):
        return schema["examples"][0]
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    if schema.get("enum"):
        return schema["enum"][0]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return _example(schema[name][0], root)
    return _of_type(schema, root)


def _of_type(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        return {name: _example(properties.get(name, {}), root) for name in schema.get("required") or []}
    if kind == "array":
        return [_example(schema.get("items") or {}, root)] * max(1, schema.get("minItems", 1))
    if kind in ("integer", "number") and "minimum" in schema:
        return schema["minimum"]
    return BY_TYPE.get(kind)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a `$ref` into the same schema points at."""
    place = schema.get("$ref", "")
    if not place.startswith("#/"):
        return schema
    found: Any = root
    for part in place[2:].split("/"):
        found = found.get(part, {})
    return dict(found)
