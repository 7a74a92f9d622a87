"""Schemas of strangers: nothing is fetched, every check ends, and the right ones pass as jsonschema has it."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.core import json_schema
from agentrl.core.errors import UserError
from agentrl.core.json_schema import Outlines, Unchecked, WrongSchema, compiled
from agentrl.gateway.answer_format import read_format
from agentrl.http.refusals import Refused
from agentrl.tools.checks import check_types
from agentrl.tools.schemas import OpenAIFunctionToolSchema

DRAFT = "https://json-schema.org/draft/2020-12/schema"
DEEP: dict[str, Any] = {"type": "object"}
for _ in range(300):
    DEEP = {"properties": {"a": DEEP}}


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "URL"},
        {"properties": {"a": {"items": {"$dynamicRef": "URL#x"}}}},
        {"$id": "URL", "$ref": "other.json"},
        {"$defs": {"a": {"$ref": "URL"}}, "$ref": "#/$defs/a"},
        {"definitions": {"a": {"$ref": "URL"}}, "properties": {"a": {"$ref": "#/definitions/a"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "allOf": [{"$ref": "file:///etc/hostname"}]},
    ],
)
def test_a_reference_out_of_the_schema_is_refused_and_not_fetched(schema: Any, listening: socket.socket) -> None:
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/s"
    written = eval(repr(schema).replace("URL", url))
    with pytest.raises(WrongSchema, match="leads out of the schema, and nothing is fetched: describe its target under"):
        compiled(written)
    with pytest.raises(Refused, match=r"response_format: the schema cannot be used: \$ref .* leads out"):
        read_format({"type": "json_schema", "json_schema": {"schema": written}}, "response_format")
    tool = {
        "type": "function",
        "function": {"name": "f", "description": "", "parameters": {"type": "object"} | written},
    }
    with pytest.raises(UserError, match=r"tools.yaml: tool_schema of f: \$ref .* leads out"):
        check_types(OpenAIFunctionToolSchema.model_validate(tool), "tools.yaml")
    with pytest.raises(BlockingIOError):
        listening.accept()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "#/$defs/a"}, r"\$ref '#/\$defs/a' leads nowhere"),
        ({"properties": {"x": {"type": "int"}}}, "properties.x.type is 'int'"),
        ({"pattern": "("}, r"the pattern '\(' is no regular expression: missing \)"),
        ({"pattern": "a" * 2000}, "more than 1000 characters"),
        ({"enum": ["a" * 2**18]}, "larger than 256 KiB"),
        (DEEP, "nested too deeply"),
        ({"$id": "http://[", "properties": {"a": {"$ref": "b"}}}, "leads out of the schema"),
        ({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, "are not checked together"),
    ],
)
def test_a_schema_that_cannot_be_used_is_told_in_one_line(schema: Any, message: str) -> None:
    with pytest.raises(WrongSchema, match=message) as told:
        compiled(schema)
    assert "\n" not in str(told.value)


def doubling(**more: Any) -> dict[str, Any]:
    levels: dict[str, Any] = {f"a{i}": {**more, "allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(40)}
    return {"$defs": levels | {"a40": {"type": "integer"}}, "$ref": "#/$defs/a0"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (doubling(), 3),
        (doubling(**{"$schema": DRAFT}), 3),  # jsonschema would go on with a class of its own
        ({"$ref": "#"}, 3),
        ({"pattern": "(a|a)*[bc]"}, "a" * 40),
        ({"patternProperties": {"(a|a)*[bc]": {}}}, {"a" * 40: 1}),
        ({"patternProperties": {"(a|a)*[bc]": {}}, "additionalProperties": False}, {"a" * 40: 1}),
        ({"propertyNames": {"pattern": "(a|a)*[bc]"}}, {"a" * 40: 1}),
        ({"uniqueItems": True}, [{"a": i} for i in range(30_000)]),
        ({"multipleOf": 0.1}, 10**400),
    ],
)
def test_a_check_that_would_not_end_is_given_up(schema: Any, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_schema, "SECONDS", 0.2)
    with pytest.raises(Unchecked):
        compiled(schema).errors(value)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"$defs": {"a": {"type": "string"}}, "$ref": "#/$defs/a"}, "x", 5),
        ({"$id": "http://a/b", "$defs": {"x": {"$id": "c", "type": "string"}}, "$ref": "c"}, "x", 5),
        ({"$defs": {"x": {"$anchor": "y", "const": 7}}, "$ref": "#y"}, 7, 8),
        ({"properties": {"a": {"$ref": "#"}}, "additionalProperties": False}, {"a": {"a": {}}}, {"a": {"b": 1}}),
        ({"$ref": DRAFT}, {"type": "string"}, {"type": "str"}),
        ({"patternProperties": {"^x": {"type": "null"}}, "additionalProperties": False}, {"xa": None}, {"b": None}),
        ({"patternProperties": {"^x": {"type": "null"}}}, {"b": 1}, {"xa": 1}),
        ({"pattern": r"^\p{Lu}"}, "Ä", "ä"),
        ({"uniqueItems": True}, [1, True, {"a": 1}, {"a": 2}], [{"a": 1}, {"a": 1.0}]),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"a": 1}, {"b": 1}),
    ],
)
def test_values_are_checked(schema: Any, right: Any, wrong: Any) -> None:
    assert compiled(schema).errors(right) == []
    assert compiled(schema).errors(wrong)


def test_outlines_follow_references_and_join_choices() -> None:
    root = {
        "$defs": {
            "Move": {"enum": ["up", "down"], "type": "string"},
            "Circle": {"allOf": [{"$ref": "#/$defs/Circle"}]},
        },
        "properties": {
            "move": {"anyOf": [{"$ref": "#/$defs/Move"}, {"type": "null"}], "default": None},
            "side": {"oneOf": [{"const": "left"}, {"const": "right"}]},
            "circle": {"$ref": "#/$defs/Circle"},
            "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "remote": {"$ref": "http://127.0.0.1/"},
        },
    }
    outlines = Outlines(root)
    seen = {name: outlines.of(part) for name, part in outlines.of({"$ref": "#"})["properties"].items()}
    assert seen == {
        "move": {"enum": ["up", "down"], "type": "string", "default": None},
        "side": {"enum": ["left", "right"]},
        "circle": {},
        "either": {"type": ["string", "integer"]},
        "remote": {},
    }
