"""Random calls through the templates that models were trained with, and back through the parsers."""

import string
from keyword import iskeyword
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chat.conversations import answer, user
from tests.chat.pairs import by_name

TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn", "Co"), include_characters="\n\t"), max_size=30)
AWKWARD = st.sampled_from(['"quoted"', "back\\slash", "new\nline", "</tool_call>", "{", "é你🙂", "'", "a</think>b"])
NAMES = st.text(string.ascii_letters + "_", min_size=1, max_size=12).filter(lambda name: not iskeyword(name))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.floats(-1e6, 1e6))
VALUES = st.recursive(
    st.one_of(SCALARS, TEXT, AWKWARD),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)
CALLS = st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=3)

# Templates that quote nothing can only carry what cannot be taken for their own tags or quotes.
PLAIN = st.text(string.ascii_letters + " .,:;!?-éß你", max_size=20)
SPELLED_ARGUMENTS = st.dictionaries(
    NAMES, st.one_of(st.integers(), st.lists(st.integers(), max_size=3), TEXT), max_size=4
)
PLAIN_ARGUMENTS = st.dictionaries(NAMES, st.one_of(st.integers(), st.booleans(), PLAIN), max_size=4)

JSON_TEMPLATES = [
    "qwen2_5",
    "qwen3",
    "qwen3_training",
    "qwen3_instruct_2507",
    "chatml_tools",
    "chatml_tools_compact",
    "deepseek_v3_1",
    "deepseekv3",
    "mistral_v3",
    "mistral_v11",
    "kimi_k2",
]
ONE_CALL_TEMPLATES = ["llama3_1", "llama3_2", "gptoss"]
SPELLED_TEMPLATES = ["qwen3_5_think", "qwen3_5_think_training", "glm4moe"]


def schema_of(calls: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Tools under which the strings among the arguments are strings; a name met twice keeps its last types."""
    tools = []
    for name, arguments in calls:
        properties = {key: {"type": "string"} if isinstance(value, str) else {} for key, value in arguments.items()}
        function = {"name": name, "parameters": {"type": "object", "properties": properties}}
        tools.append({"type": "function", "function": function})
    return tools


def round_trip(template: str, calls: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, Any]]:
    """Render an assistant turn with these calls, and parse the tokens a model would have sampled for it."""
    chat = by_name(template)
    tool_calls = [
        {"id": f"call{i:05d}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]
    if template == "kimi_k2":
        for i, call in enumerate(tool_calls):
            call["id"] = f"functions.{call['function']['name']}:{i}"
    ledger = chat.transcript([user("x"), answer("", tool_calls=tool_calls)])
    reply = chat.parse(ledger.ids[ledger.prompt_length :], schema_of(calls))
    assert reply.closed
    assert not any(call.error for call in reply.calls), reply.calls
    assert reply.message.get("content", "").strip() in ("", "<think>\n\n</think>")
    return [(call.name, call.arguments) for call in reply.calls]


@pytest.mark.parametrize("template", JSON_TEMPLATES)
@settings(max_examples=12, deadline=None)
@given(calls=CALLS)
def test_calls_in_json(template: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    assert round_trip(template, calls) == calls


@pytest.mark.parametrize("template", ONE_CALL_TEMPLATES)
@settings(max_examples=12, deadline=None)
@given(call=st.tuples(NAMES, ARGUMENTS))
def test_one_call_in_json(template: str, call: tuple[str, dict[str, Any]]) -> None:
    assert round_trip(template, [call]) == [call]


@pytest.mark.parametrize("template", SPELLED_TEMPLATES)
@settings(max_examples=12, deadline=None)
@given(call=st.tuples(NAMES, SPELLED_ARGUMENTS))
def test_arguments_spelled_out(template: str, call: tuple[str, dict[str, Any]]) -> None:
    assert round_trip(template, [call]) == [call]


@settings(max_examples=12, deadline=None)
@given(calls=st.lists(st.tuples(NAMES, PLAIN_ARGUMENTS), min_size=1, max_size=3))
def test_pythonic_calls(calls: list[tuple[str, dict[str, Any]]]) -> None:
    assert round_trip("lfm2_2_5", calls) == calls
