import pytest

from agentrl.tools import (
    OpenAIFunctionParametersSchema,
    OpenAIFunctionPropertySchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
)

FULL = {
    "type": "function",
    "function": {
        "name": "plan",
        "description": "Plans.",
        "parameters": {
            "type": "object",
            "properties": {
                "stops": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "minItems": 1},
                "options": {"type": "object", "properties": {"fast": {"type": "boolean", "default": False}}},
                "when": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                "size": {"type": ["integer", "number"]},
            },
        },
    },
}


def test_every_key_of_the_json_schema_is_kept():
    assert OpenAIFunctionToolSchema.model_validate(FULL).model_dump() == FULL
    assert OpenAIFunctionToolSchema.model_validate(FULL).model_dump(exclude_unset=True, exclude_none=True) == FULL


def test_attributes_read_as_in_verl():
    schema = OpenAIFunctionToolSchema.model_validate(FULL)
    assert schema.function.name == "plan"
    assert schema.function.strict is False
    assert schema.function.parameters.required == []
    assert schema.function.parameters.properties["size"].type == ["integer", "number"]
    assert schema.function.parameters.properties["stops"].description is None
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = schema.function.no_such_thing


def test_built_from_parts_as_verl_tools_do():
    built = OpenAIFunctionToolSchema(
        type="function",
        function=OpenAIFunctionSchema(
            name="f",
            description="d",
            parameters=OpenAIFunctionParametersSchema(
                type="object",
                properties={"x": OpenAIFunctionPropertySchema(type="string", description="x")},
                required=["x"],
            ),
        ),
    )
    assert built.model_dump()["function"]["parameters"]["properties"] == {"x": {"type": "string", "description": "x"}}


def test_a_change_shows_in_the_dump():
    schema = OpenAIFunctionToolSchema.model_validate(FULL)
    schema.function.description = "Other words."
    assert schema.model_dump()["function"]["description"] == "Other words."
    assert FULL["function"]["description"] == "Plans."


def test_parameters_may_be_absent():
    dump = OpenAIFunctionToolSchema.model_validate({"function": {"name": "now"}}).model_dump()
    expected = {"name": "now", "parameters": {"type": "object", "properties": {}}}
    assert dump == {"type": "function", "function": expected}


@pytest.mark.parametrize("bad", [{}, {"function": {}}, {"function": {"name": ""}}, "text", {"function": "text"}])
def test_what_is_no_tool_schema_raises(bad):
    with pytest.raises(ValueError, match="missing|expected"):
        OpenAIFunctionToolSchema.model_validate(bad)
