"""Thinking, by whatever tags: a call within it is not run, and the model is told where it may have meant it."""

import pytest

from agentrl.chat import PARSERS
from agentrl.chat.thinking import BLOCKS
from tests.chat.formats import WELL_FORMED
from tests.chat.pairs import by_name
from tests.registries import names

TAGS = [(tag, close) for tag, close in BLOCKS.items() if tag != "<|inner_prefix|>"]
MARKED = {
    sample.format: sample.text
    for sample in WELL_FORMED
    if sample.calls and not sample.reasoning and not sample.content and sample.text[0] in "<["
}
"""A call that begins with a tag, per format."""
BARE = {"pythonic": "<|tool_call_start|>[f(x=1)]<|tool_call_end|>", "llama3_json": '<|python_tag|>{"name": "f"}'}
CALLS = (
    MARKED
    | {
        "apertus": '<|tools_prefix|>[{"f": {}}]<|tools_suffix|>',
        "gigachat": 'function call<|role_sep|>\n{"name": "f", "arguments": {}}',
        "glm": "<tool_call>f</tool_call>",
        "hunyuan": "<tool_calls><tool_call>f<tool_sep></tool_call></tool_calls>",
        "kimi": "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "minimax_m2": '<minimax:tool_call><invoke name="f"></invoke></minimax:tool_call>',
        "minimax_m3": (
            ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[</invoke>]<]minimax[>[</tool_call>'
        ),
        "seed_oss": "<seed:tool_call><function=f></function></seed:tool_call>",
        "solar": "<|tool_call:begin|>0<|tool_call:name|>f<|tool_call:args|>{}<|tool_call:end|>",
        "gemma4": "<|tool_call>call:f{}<tool_call|>",
        "functionary": "<function=f>{}</function>",
        "command": '<|START_ACTION|>[{"tool_name": "f"}]<|END_ACTION|>',
        "nemotron_v2": '<TOOLCALL>[{"name": "f"}]</TOOLCALL>',
        "phi4_mini": '<|tool_call|>{"name": "f"}<|/tool_call|>',
    }
    | BARE
)
FORMATS = [format for format in names(PARSERS) if format != "gpt_oss"]


@pytest.mark.prevents("a call inside thinking is run, or lost silently")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("tag", "close"), TAGS)
def test_a_call_within_thinking_is_not_run(format: str, tag: str, close: str) -> None:
    call, parse = CALLS[format], PARSERS[format]
    wanted = [(one.name, one.arguments) for one in parse(call).calls]
    assert wanted

    after = parse(f"{tag}\nI could {call}\n{close}\n\n{call}")
    assert [(one.name, one.arguments) for one in after.calls] == wanted

    answered = parse(f"{tag}\nI could {call}\n{close}\n\nNo.")
    assert (answered.calls, answered.content) == ([], "No.")

    for text in (f"{tag}\nI could {call}", f"{tag}\nI could {call}\n{close}\n"):
        (told,) = parse(text).calls
        assert told.error is not None
        assert f"inside your thinking, so it was not run: end the thinking with {close}" in told.error

    quiet = parse(f"{tag}\nHm.")
    assert (quiet.calls, quiet.reasoning, quiet.content) == ([], "Hm.", "")


def test_gpt_oss_thinks_in_a_channel() -> None:
    call = "<|channel|>commentary to=functions.f<|message|>{}<|call|>"
    parse = PARSERS["gpt_oss"]
    (told,) = parse(f"<|channel|>analysis<|message|>I could {call}").calls
    assert told.error is not None
    assert "inside the analysis channel, so it was not run" in told.error
    assert [one.name for one in parse(f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{call}").calls] == [
        "f"
    ]


def test_apertus_calls_end_its_thinking() -> None:
    parsed = PARSERS["apertus"](f"<|inner_prefix|>Hm.{CALLS['apertus']}")
    assert ([call.name for call in parsed.calls], parsed.reasoning) == (["f"], "Hm.")


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("hermes", '{"name": "f", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f"}</tool_call> and {"name": "f"}</tool_call>'),
        ("qwen3_coder", "<function=f></function></tool_call>"),
        ("glm", "f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>"),
        ("kimi", "functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"),
        ("minimax_m2", '<invoke name="f"></invoke></minimax:tool_call>'),
        ("gemma4", "call:f{}<tool_call|>"),
    ],
)
def test_a_call_without_its_opening_tag_is_explained(format: str, text: str) -> None:
    told = PARSERS[format](text).calls[-1]
    assert told.error is not None
    assert " without <" in told.error


def test_a_closing_tag_in_an_answer_is_text() -> None:
    assert PARSERS["hermes"]("A call ends with </tool_call>.").calls == []


def test_think_tags_in_arguments_are_arguments() -> None:
    (call,) = PARSERS["hermes"]('<tool_call>{"name": "f", "arguments": {"x": "a</think>b"}}</tool_call>').calls
    assert call.arguments == {"x": "a</think>b"}


@pytest.mark.parametrize("template", ["qwen3_5_think", "deepseekv3"])
def test_thinking_that_the_prompt_opened(template: str) -> None:
    chat = by_name(template)
    message = chat.read("Let me see.\n</think>\n\nDone.").message
    assert message.get("reasoning_content", "Let me see.") == "Let me see."
    assert message["content"].removeprefix("<think>\nLet me see.\n</think>\n\n") == "Done."


def test_a_call_in_thinking_that_the_prompt_opened_and_nothing_closed_is_not_run_and_explained() -> None:
    reply = by_name("qwen3_5_think").read("Let me <tool_call><function=f></function></tool_call>")
    (call,) = reply.calls
    assert call.error is not None
    assert "inside your thinking, so it was not run: end the thinking with </think> before the call" in call.error
    assert "tool_calls" not in reply.message
    assert reply.message["content"] == ""


def test_thinking_that_the_prompt_opened_and_nothing_closed_is_no_answer() -> None:
    reply = by_name("qwen3_5_think").read("Let me see", closed=False)
    assert reply.calls == []
    assert reply.message["content"] == ""


def test_a_call_after_thinking_that_the_prompt_opened_runs() -> None:
    text = (
        "I could <tool_call><function=no></function></tool_call>\n</think>\n\n<tool_call><function=f>"
        "</function></tool_call>"
    )
    assert [(call.name, call.error) for call in by_name("qwen3_5_think").read(text).calls] == [("f", None)]


def test_an_answer_to_a_tool_result_without_a_prompt_is_no_thought() -> None:
    assert by_name("deepseekv3").read("It is 4.").message["content"] == "It is 4."
