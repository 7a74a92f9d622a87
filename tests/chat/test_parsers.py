"""Tool-call formats: what they read, and what they tell the model when they cannot."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrl.chat import PARSERS, Chat
from agentrl.core.errors import UserError
from tests.chat.formats import MALFORMED, WELL_FORMED, Sample
from tests.chat.pairs import by_name
from tests.chat.realia import tokenizer
from tests.registries import names

WORDS = {word for sample in WELL_FORMED for word in sample.text.replace(">", "> ").split()}
FORMATS = list(names(PARSERS))
CHANNELLED = {"gpt_oss", "kimi_k3", "command", "solar", "functionary"}
"""Formats whose answers stand between tags, too."""
MARKERS = [*sorted(WORDS), "{", "}", '"', "\\"]


@pytest.mark.parametrize("sample", WELL_FORMED, ids=lambda sample: sample.format)
def test_well_formed_turns(sample: Sample) -> None:
    parsed = PARSERS[sample.format](sample.text)
    assert [(call.name, call.arguments) for call in parsed.calls] == sample.calls
    assert not any(call.error for call in parsed.calls)
    assert (parsed.content, parsed.reasoning) == (sample.content, sample.reasoning)
    assert len({call.id for call in parsed.calls}) == len(parsed.calls)


@pytest.mark.parametrize(("format", "text", "says", "name"), MALFORMED)
def test_malformed_calls_tell_the_model_what_is_wrong_and_how_to_write_it(
    format: str, text: str, says: str, name: str
) -> None:
    (call,) = PARSERS[format](text).calls
    assert call.arguments is None
    assert call.error is not None
    assert says in call.error
    assert "Tool call 1 is malformed" in call.error
    assert "Write it as" in call.error
    assert call.name == name


def test_every_format_is_tried_both_ways() -> None:
    assert {sample.format for sample in WELL_FORMED} == set(names(PARSERS)) | {"qwen"}
    assert {format for format, *_ in MALFORMED} == set(names(PARSERS))


def test_a_good_call_beside_a_bad_one_still_counts() -> None:
    text = '<tool_call>{"name": oops}</tool_call><tool_call>{"name": "g", "arguments": {}}</tool_call>'
    bad, good = PARSERS["hermes"](text).calls
    assert bad.error is not None
    assert (good.name, good.arguments, good.error) == ("g", {}, None)


def test_a_call_without_its_closing_tag_ends_where_the_next_one_opens() -> None:
    first, second = PARSERS["hermes"]('<tool_call>{"name": "f"\n<tool_call>{"name": "g"}</tool_call>').calls
    assert first.error is not None
    assert (second.name, second.error) == ("g", None)


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=25, deadline=None)
@given(text=st.one_of(st.text(), st.lists(st.one_of(st.sampled_from(MARKERS), st.text(max_size=5))).map("".join)))
@example(text="[" * 10_000)
@example(text="<tool_call>" + '{"a":' * 10_000)
@example(text='<tool_call>{"name": "f", "arguments": {"n": ' + "9" * 5000 + "}}</tool_call>")
@example(text="[f(x=" + "-" * 5000 + "1)]")
@example(text="<|python_tag|>a.call(\x00")
@example(text="[f(x='\\d')]")
@example(text="<tool_call>" * 200)
def test_no_text_makes_a_parser_raise_and_every_call_is_read_or_explained(format: str, text: str) -> None:
    parsed = PARSERS[format](text)
    for call in parsed.calls:
        assert (call.arguments is None) == (call.error is not None)
        assert call.id
        assert call.name
    if not parsed.calls and format not in CHANNELLED:
        assert parsed.preamble + parsed.content == text


@settings(max_examples=50, deadline=None)
@given(before=st.text(alphabet="abc \n", max_size=8), after=st.text(alphabet="xyz \n", max_size=8))
def test_text_around_calls_is_kept(before: str, after: str) -> None:
    parsed = PARSERS["hermes"](f'{before}<tool_call>{{"name": "f"}}</tool_call>{after}')
    assert "".join(parsed.content.split()) == "".join((before + after).split())


def test_values_are_typed_by_the_schema() -> None:
    properties = {"text": {"type": "string"}, "number": {"type": "integer"}, "any": {}}
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}
    ]
    body = "".join(f"<arg_key>{key}</arg_key><arg_value>12</arg_value>" for key in properties)
    (call,) = PARSERS["glm"](f"<tool_call>f{body}</tool_call>", tools).calls
    assert call.arguments == {"text": "12", "number": 12, "any": 12}


def test_ids_are_the_models_own_where_the_format_has_them() -> None:
    mistral = PARSERS["mistral"]('[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcdefghi"}]').calls[0]
    kimi = PARSERS["kimi"]("<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}<|tool_call_end|>").calls[0]
    assert (mistral.id, kimi.id) == ("abcdefghi", "functions.f:3")


@pytest.mark.parametrize(
    "text", ['[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "no"}]', "[TOOL_CALLS]f[CALL_ID]<s>[ARGS]{}"]
)
def test_an_id_that_the_template_would_refuse_is_replaced(text: str) -> None:
    (call,) = PARSERS["mistral"](text).calls
    assert call.name == "f"
    assert len(call.id) == 9
    assert call.id.isalnum()


def test_made_up_ids_suit_mistral_and_repeat_themselves() -> None:
    text = '<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "f"}</tool_call>'
    first, second = PARSERS["hermes"](text).calls
    assert first.id != second.id
    assert len(first.id) == 9
    assert first.id.isalnum()
    assert [call.id for call in PARSERS["hermes"](text).calls] == [first.id, second.id]


def test_ids_beyond_the_vocabulary_do_not_stop_a_run() -> None:
    assert by_name("qwen2_5").parse([10**6]).message["content"] == ""


def test_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"rollout\.multi_turn\.format=xml: choose .*hermes.*apertus"):
        Chat(tokenizer("deepseek"), format="xml", chat_template="{{ messages[0].content }}")


def test_a_malformed_turn_keeps_its_text_in_the_history() -> None:
    text = 'Hm. <tool_call>{"name": "f", "arguments": {"x": 1}</tool_call>'
    reply = by_name("qwen2_5").read(text)
    assert reply.message == {"role": "assistant", "content": text}
    assert reply.calls[0].error is not None
