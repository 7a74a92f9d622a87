"""Random calls as models' own templates write them, and back through the parsers."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Environment

from agentrl.chat import PARSERS
from agentrl.chat.template import Template
from tests.chat.call_forms import FORMAT_OF, JSON_FORMS, ONE_CALL_FORMS, SPELLED_FORMS
from tests.chat.realia import template, tokenizer
from tests.chat.test_round_trip import ARGUMENTS, CALLS, NAMES, SPELLED_ARGUMENTS, TEXT

Calls = list[tuple[str, dict[str, Any]]]
JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
PLAIN = TEXT.filter(lambda text: "<" not in text and text.strip() == text)
NESTED = st.recursive(
    st.one_of(st.integers(), st.booleans(), st.sampled_from(["a", "it is 'so'", "x y"])),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3), st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    ),
    max_leaves=5,
)


def environment() -> Environment:
    made = Environment()
    made.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return made


def schema(value: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"type": JSON_TYPES.get(type(value), "null")}
    if isinstance(value, dict):
        made["properties"] = {key: schema(inner) for key, inner in value.items()}
    return made


def tools(calls: Calls) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": schema(given)}} for name, given in calls]


def round_trip(form: str, source: str, calls: Calls) -> Calls:
    text = (
        environment()
        .from_string(source)
        .render(calls=[{"name": name, "arguments": arguments} for name, arguments in calls])
    )
    read = PARSERS[FORMAT_OF.get(form, form)](text, tools(calls)).calls
    assert not any(call.error for call in read), (text, read)
    return [(call.name, call.arguments) for call in read]


@pytest.mark.parametrize("form", JSON_FORMS)
@settings(max_examples=12, deadline=None)
@given(calls=CALLS)
def test_forms_that_carry_types(form: str, calls: Calls) -> None:
    assert round_trip(form, JSON_FORMS[form], calls) == calls


@pytest.mark.parametrize("form", ONE_CALL_FORMS)
@settings(max_examples=12, deadline=None)
@given(call=st.tuples(NAMES, ARGUMENTS))
def test_forms_of_one_call(form: str, call: tuple[str, dict[str, Any]]) -> None:
    assert round_trip(form, ONE_CALL_FORMS[form], [call]) == [call]


@pytest.mark.parametrize("form", SPELLED_FORMS)
@settings(max_examples=12, deadline=None)
@given(call=st.tuples(NAMES, SPELLED_ARGUMENTS), nested=NESTED)
def test_forms_without_types(form: str, call: tuple[str, dict[str, Any]], nested: Any) -> None:
    name, arguments = call
    if form == "minimax_m3":  # an empty list is an empty element, and a list's texts look like their type
        arguments = {key: value for key, value in arguments.items() if value != []}
    wanted = [(name, {**arguments, "nested_": nested}), ("other_", {})]
    assert round_trip(form, SPELLED_FORMS[form], wanted) == wanted


SHIPPED = {
    "deepseekv3": "deepseek",
    "diffusion_gemma": "gemma4",
    "gemma4": "gemma4",
    "gemma4_v5": "gemma4",
    "glm4moe": "glm",
    "gptoss": "gpt_oss",
    "lfm2_2_5": "pythonic",
    "lfm2_v2": "pythonic",
    "llama3_1": "llama3_json",
    "llama3_2": "llama3_json",
    "nemotron_3_5_lightning": "qwen3_coder",
    "nemotron_3_nano": "qwen3_coder",
    "nemotron_3_ultra": "qwen3_coder",
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_5_think": "qwen3_coder",
    "qwen3_6": "qwen3_coder",
    "qwen3_8": "qwen3_coder",
    "qwen3_vl": "hermes",
}
"""Templates that trl ships -> the format that reads their calls."""
AWKWARD = {
    "text": 'a "b" \n é <b> it\'s {x} 🙂',
    "number": 3,
    "share": -1.5,
    "yes": True,
    "nothing": None,
    "list": [1, "a", {"b": []}],
    "object": {"k": {"d": [1, 2.5, None, False]}},
}


@pytest.mark.parametrize("arguments", [AWKWARD, {}], ids=["all types", "no arguments"])
@pytest.mark.parametrize("name", SHIPPED)
def test_templates_of_whole_models(name: str, arguments: dict[str, Any]) -> None:
    calls: Calls = [("look_up", arguments)]
    shown = Template(tokenizer("qwen"), template(name))
    user = {"role": "user", "content": "x"}
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
    known = [*tools(calls)]
    known[0]["function"]["description"] = "x"
    for part in known[0]["function"]["parameters"]["properties"].values():
        part["description"] = "x"
    prompt = shown.render([user], known, generation=True)
    whole = shown.render([user, {"role": "assistant", "content": "", "tool_calls": [call]}], known)
    shared = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
    text = whole[shared:].removesuffix("<|eot_id|>")
    read = PARSERS[SHIPPED[name]](text, known).calls
    assert [(one.name, one.arguments) for one in read] == calls
