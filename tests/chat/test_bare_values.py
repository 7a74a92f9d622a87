"""Values without quotes: they stay text where the schema wants text, in every format that writes them so."""

from typing import Any

import pytest

from agentrl.chat.parsers import parser_for
from agentrl.tools.arguments import ArgumentCheck

MARK = "]<]minimax[>["
FORMS = {
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=x>\n{}\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="x">{}</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    "minimax_m3": '#<tool_call>\n#<invoke name="f">#<x>{}#</x>#</invoke>\n#</tool_call>'.replace("#", MARK),
    "seed_oss": "<seed:tool_call>\n<function=f>\n<parameter=x>{}</parameter>\n</function>\n</seed:tool_call>",
    "hunyuan": "<tool_calls><tool_call>f<tool_sep><arg_key>x</arg_key><arg_value>{}</arg_value></tool_call>"
    "</tool_calls>",
}
DEFS = {"Zip": {"type": "string"}, "Span": {"type": "object", "properties": {"n": {"type": "integer"}}}}
CASES: list[tuple[dict[str, Any], str, Any]] = [
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "10115", "10115"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, '{"a": 1}', '{"a": 1}'),
    ({"type": ["string", "null"]}, "true", "true"),
    ({"type": ["integer", "null"]}, "7", 7),
    ({"$ref": "#/$defs/Zip"}, "00", "00"),
    ({"$ref": "#/$defs/Zip"}, "10115", "10115"),
    ({"$ref": "#/$defs/Span"}, '{"n": 3}', {"n": 3}),
    ({"allOf": [{"$ref": "#/$defs/Zip"}]}, "42", "42"),
    ({"oneOf": [{"type": "string"}, {"type": "null"}]}, "[1]", "[1]"),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "5", 5),
    ({"const": "7"}, "7", "7"),
    ({"const": 7}, "7", 7),
    ({"enum": ["1", None]}, "1", "1"),
    ({"type": "string", "pattern": "^[0-9]+$"}, "99", "99"),
    ({"not": {"type": "number"}}, "1.50", "1.50"),
    ({"type": "array", "items": {"type": "string"}}, '["1", "2"]', ["1", "2"]),
    ({"description": "anything"}, "3", 3),
]


def called(form: str, tools: Any, value: str) -> Any:
    (call,) = parser_for(form)(FORMS[form].replace("{}", value), tools).calls
    return call.arguments


def tools_of(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


@pytest.mark.parametrize("form", FORMS)
def test_a_value_stays_text_where_the_schema_wants_text(form: str) -> None:
    for schema, written, right in CASES:
        parameters = {"type": "object", "$defs": DEFS, "properties": {"x": schema}}
        assert called(form, tools_of(parameters), written) == {"x": right}, schema
        assert ArgumentCheck("f", parameters).complaint({"x": right}) is None


def test_quoted_values_are_read_again_only_where_the_schema_refuses_text() -> None:
    fields = {
        "a": CASES[0][0],
        "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "c": {"type": "array"},
        "d": {},
    }
    (call,) = parser_for("pythonic")('[f(a="10115", b="7", c="[1]", d="7")]', tools_of({"properties": fields})).calls
    assert call.arguments == {"a": "10115", "b": 7, "c": [1], "d": "7"}


@pytest.mark.parametrize(("kind", "code"), [("a", "123"), ("b", 123)])
def test_a_choice_at_the_top_decides_by_the_other_arguments(kind: str, code: Any) -> None:
    def option(name: str, type: str) -> dict[str, Any]:
        return {"properties": {"kind": {"const": name}, "code": {"type": type}}, "required": ["kind"]}

    text = f"<tool_call>f<arg_key>kind</arg_key><arg_value>{kind}</arg_value><arg_key>code</arg_key>"
    schema = {"type": "object", "oneOf": [option("a", "string"), option("b", "integer")]}
    (call,) = parser_for("glm")(f"{text}<arg_value>123</arg_value></tool_call>", tools_of(schema)).calls
    assert call.arguments == {"kind": kind, "code": code}


@pytest.mark.parametrize(
    "schema",
    [{"$ref": "http://127.0.0.1:9/x"}, {"type": "strin"}, {"$ref": "#"}, {"properties": 5}, {"properties": {}}],
)
@pytest.mark.parametrize("form", FORMS)
def test_a_schema_that_decides_nothing_gives_what_the_value_spells(form: str, schema: Any) -> None:
    assert called(form, tools_of(schema), "5") == {"x": 5}


def test_elements_within_an_argument_are_typed_by_their_part_of_the_schema() -> None:
    item = {"type": "object", "properties": {"zip": CASES[0][0], "n": {"type": "integer"}}}
    schema = {"$defs": {"Item": item}, "properties": {"x": {"type": "array", "items": {"$ref": "#/$defs/Item"}}}}
    inner = f"{MARK}<item>{MARK}<zip>10115{MARK}</zip>{MARK}<n>3{MARK}</n>{MARK}</item>"
    assert called("minimax_m3", tools_of(schema), inner) == {"x": [{"zip": "10115", "n": 3}]}
