"""Tool schemas under verl's names, over the whole JSON schema.

verl's classes drop what they do not know: `items`, nested `properties`, `default`, `anyOf`. These keep every key
that was written, so that the model sees it and arguments are checked against it.
"""

from typing import Any, ClassVar, Self


class SchemaPart:
    """Attribute access to a piece of JSON: `part.description`; keys that were not written read as their default."""

    required_fields: ClassVar[tuple[str, ...]] = ()
    field_defaults: ClassVar[dict[str, Any]] = {}
    field_classes: ClassVar[dict[str, type["SchemaPart"]]] = {}

    def __init__(self, **fields: Any) -> None:
        """Raises ValueError when a field that must be there is missing or empty."""
        for name in self.required_fields:
            if not fields.get(name):
                raise ValueError(f"{name} is missing")
        for name, part in self.field_classes.items():
            if name in fields:
                fields[name] = part.model_validate(fields[name])
        vars(self).update(fields)

    @classmethod
    def model_validate(cls, data: Any) -> Self:
        """From a dict, or from any object with `model_dump`. Raises ValueError where it does not fit."""
        if isinstance(data, cls):
            return data
        if hasattr(data, "model_dump"):
            data = data.model_dump(exclude_unset=True, exclude_none=True)
        if not isinstance(data, dict):
            raise ValueError(f"expected a mapping, got {data!r}")
        return cls(**data)

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Plain JSON: all that was written and nothing else, whichever of pydantic's options are given."""
        return {name: _plain(value) for name, value in vars(self).items()}

    def __getattr__(self, name: str) -> Any:
        if name in type(self).field_defaults:
            return type(self).field_defaults[name]
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SchemaPart) and self.model_dump() == other.model_dump()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_dump()})"


class OpenAIFunctionPropertySchema(SchemaPart):
    """One parameter: any JSON schema."""

    field_defaults: ClassVar[dict[str, Any]] = {"type": None, "description": None, "enum": None}


class OpenAIFunctionParametersSchema(SchemaPart):
    """All parameters: a JSON schema of type object."""

    field_defaults: ClassVar[dict[str, Any]] = {"type": "object", "required": []}

    def __init__(self, **fields: Any) -> None:
        properties = fields.get("properties") or {}
        if not isinstance(properties, dict):
            raise ValueError(f"properties: expected a mapping, got {properties!r}")
        read = OpenAIFunctionPropertySchema.model_validate
        fields["properties"] = {name: read(schema) for name, schema in properties.items()}
        super().__init__(**{"type": "object"} | fields)


class OpenAIFunctionSchema(SchemaPart):
    """Name, description and parameters of a function."""

    required_fields: ClassVar[tuple[str, ...]] = ("name",)
    field_defaults: ClassVar[dict[str, Any]] = {"description": "", "strict": False}
    field_classes: ClassVar[dict[str, type[SchemaPart]]] = {"parameters": OpenAIFunctionParametersSchema}

    def __init__(self, **fields: Any) -> None:
        fields["parameters"] = fields.get("parameters") or {}
        super().__init__(**fields)


class OpenAIFunctionToolSchema(SchemaPart):
    """A tool as it appears in the prompt: `{"type": "function", "function": {...}}`."""

    required_fields: ClassVar[tuple[str, ...]] = ("function",)
    field_classes: ClassVar[dict[str, type[SchemaPart]]] = {"function": OpenAIFunctionSchema}

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"type": "function"} | fields)


def _plain(value: Any) -> Any:
    if isinstance(value, SchemaPart):
        return value.model_dump()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
