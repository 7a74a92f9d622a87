"""Made-up arguments that a tool's schema accepts, to try a tool without a model."""

from typing import Any

WORD = "example"


def example(schema: Any, *, name: str = "") -> Any:
    """A value that fits a JSON schema: its own example or default where it has one. `name` colours texts."""
    if not isinstance(schema, dict):
        return name or WORD
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return example(schema[key][0], name=name)
    return _of_type(schema, name)


def _of_type(schema: dict[str, Any], name: str) -> Any:
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties") or {}
        wanted = schema.get("required") or list(properties)
        return {key: example(properties.get(key), name=key) for key in wanted}
    if kind == "array":
        return [example(schema.get("items"), name=name) for _ in range(max(int(schema.get("minItems", 1)), 1))]
    if kind in ("integer", "number"):
        return schema.get("minimum", 2)
    return {"boolean": True, "null": None}.get(str(kind), name or WORD)
