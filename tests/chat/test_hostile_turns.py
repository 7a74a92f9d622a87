# ruff: noqa: E501
"""Turns that a model may write to no good: what a parser does with them grows with their length at most."""

import json
import time
from collections.abc import Iterator
from itertools import permutations

import pytest

from agentrl.chat import PARSERS
from agentrl.chat.parsers.calls import MAX_BROKEN, MAX_CALLS
from agentrl.core.json_text import DEEPEST
from tests.registries import names

pytestmark = pytest.mark.integration

MARKERS: dict[str, list[str]] = {
    "hermes": ["<tool_call>", "</tool_call>", '{"name": "f", "arguments": {', "}}"],
    "llama3_json": ["<|python_tag|>", '{"name": "f", "parameters": ', "{}}", ";", "f.call(", '[{"name":"f"},'],
    "mistral": ["[TOOL_CALLS]", "f", "[CALL_ID]", "[ARGS]", "{}", '[{"name":"f"}]'],
    "pythonic": ["[f(", "x=1,", 'g(y="a")', "]", "<|python_start|>", "<|python_end|>", "'", '"', "\\", "{", "(", "-"],
    "qwen3_coder": ["<tool_call>", "<function=f>", "<parameter=x>", "</parameter>", "</function>", "</tool_call>"],
    "glm": ["<tool_call>", "f", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"],
    "deepseek": [
        "<｜tool▁call▁begin｜>",
        "function",
        "<｜tool▁sep｜>",
        "f\n```json\n",
        "{}",
        "```",
        "<｜tool▁call▁end｜>",
    ],
    "deepseek_v4": [
        "<｜DSML｜tool_calls>",
        '<｜DSML｜invoke name="f">',
        '<｜DSML｜parameter name="x" string="true">',
        "</｜DSML｜parameter>",
        "</｜DSML｜invoke>",
        "</｜DSML｜tool_calls>",
    ],
    "kimi": ["<|tool_call_begin|>", "functions.f:0", "<|tool_call_argument_begin|>", "{}", "<|tool_call_end|>"],
    "kimi_k3": [
        "<|open|>tools<|sep|>",
        '<|open|>call tool="f" index="1"<|sep|>',
        '<|open|>argument key="x" type="string"<|sep|>',
        "<|close|>argument<|sep|>",
        "<|close|>call<|sep|>",
        "<|close|>tools<|sep|>",
    ],
    "gpt_oss": ["<|start|>", "<|channel|>", "<|message|>", "analysis", "to=functions.f", "{}", "<|call|>", "<|end|>"],
    "gemma4": ["<|tool_call>", "call:f{", "x:", '<|"|>', "1,", "[", "{", "}", "<tool_call|>"],
    "minimax_m2": [
        "<minimax:tool_call>",
        '<invoke name="f">',
        '<parameter name="x">',
        "</parameter>",
        "</invoke>",
        "</minimax:tool_call>",
    ],
    "minimax_m3": [
        "]<]minimax[>[<tool_call>",
        ']<]minimax[>[<invoke name="f">',
        "]<]minimax[>[<x>",
        "]<]minimax[>[</x>",
        "]<]minimax[>[</invoke>",
        "]<]minimax[>[</tool_call>",
        "]<]minimax[>[",
    ],
    "seed_oss": [
        "<seed:tool_call>",
        "<function=f>",
        "<parameter=x>",
        "</parameter>",
        "</function>",
        "</seed:tool_call>",
        "<seed:think>",
    ],
    "hunyuan": [
        "<tool_calls>",
        "<tool_call>",
        "f<tool_sep>",
        "<arg_key>x</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "</tool_call>",
        "</tool_calls>",
    ],
    "nemotron_v2": ["<TOOLCALL>", '[{"name":"f"},', "</TOOLCALL>"],
    "phi4_mini": ["<|tool_call|>", "functools[", '{"name":"f"},', "]", "<|/tool_call|>"],
    "command": ["<|START_ACTION|>", '[{"tool_name":"f"},', "<|END_ACTION|>", "<|START_THINKING|>"],
    "apertus": ["<|tools_prefix|>", '[{"f":{}},', "<|tools_suffix|>", "<|inner_prefix|>"],
    "solar": [
        "<|tool_call:begin|>",
        "a",
        "<|tool_call:name|>",
        "f",
        "<|tool_call:args|>",
        "{}",
        "<|tool_call:end|>",
        "<|end|>",
    ],
    "gigachat": ["function call<|role_sep|>", '{"name":"f","arguments":{}}', "<|message_sep|>", "<｜GCML｜tool_calls>"],
    "functionary": ["<function=f>", "{}", "</function>", ">>>f\n", ">>>all\n"],
}
"""Per format, the pieces of a call in their order, and tags around it."""
PADS = [" ", "\n", '"', "[", "{", '{"a":', "\\", "9", "a", "<", "1,", "\t \n", "\\u", "[],", "1e5,", "="]
SIZES = (250, 1_000, 4_000, 16_000, 64_000)
"""Each four times the one before: linear work grows by 4, quadratic by 16, cubic by 64."""
NOTHING = 0.05
"""Seconds of processor time that prove nothing."""
FORMATS = list(names(PARSERS))
MEGABYTE = 1_000_000
ENOUGH = 0.5
"""Seconds of processor time for a megabyte. Measured: at most 0.1; the rest is for slow and busy machines."""


def patterns(markers: list[str]) -> Iterator[tuple[str, str, str]]:
    """(what stands first, what repeats up to the middle, what repeats from there on)."""
    for marker in markers:
        yield "", marker, marker
        for pad in PADS:
            yield marker, pad, pad
            yield "", f"{marker}{pad}", f"{marker}{pad}"
            yield "", pad, marker
    for one, other in permutations(markers, 2):
        yield "", f"{one}{other}", f"{one}{other}"
        yield "", one, other
    for length in range(1, len(markers) + 1):
        beginning = "".join(markers[:length])
        yield "", beginning, beginning
        yield beginning, " ", " "
        rest = "".join(markers[: length - 1] + markers[length:])
        yield "", rest, rest


def turn(pattern: tuple[str, str, str], size: int) -> str:
    first, one, other = pattern
    half = size // 2
    return (first + (one * half)[:half] + (other * half)[:half])[:size]


def work(format: str, text: str) -> float:
    """Seconds of this thread's own processor time, which other programs do not add to."""
    began = time.thread_time()
    parsed = PARSERS[format](text)
    took = time.thread_time() - began
    assert len(parsed.calls) <= MAX_CALLS + 1
    assert sum(call.error is not None for call in parsed.calls) <= MAX_BROKEN + 1
    return took


def grows_faster_than_the_text(format: str, pattern: tuple[str, str, str]) -> bool:
    before = NOTHING
    for size in SIZES:
        text = turn(pattern, size)
        took = work(format, text)
        for _ in range(3):
            took = took if took <= max(NOTHING, 10 * before) else min(took, work(format, text))
        if took > max(NOTHING, 10 * before):
            return True
        before = took
    return False


def test_every_format_has_its_markers() -> None:
    assert MARKERS.keys() == set(FORMATS)


@pytest.mark.prevents("one hostile turn (1 MB of one tag, of spaces, of brackets) stops all conversations")
@pytest.mark.parametrize("format", FORMATS)
def test_work_grows_with_the_text_at_most(format: str) -> None:
    bad = next((p for p in patterns(MARKERS[format]) if grows_faster_than_the_text(format, p)), None)
    assert bad is None


X = '<tool_call>{"name": "f", "arguments": {"x": %s}}</tool_call>'
WRITTEN = {
    "hermes": X,
    "llama3_json": '{"name": "f", "parameters": {"x": %s}}',
    "mistral": '[TOOL_CALLS]f[ARGS]{"x": %s}',
    "pythonic": "[f(x=%s)]",
    "qwen3_coder": "<tool_call><function=f><parameter=x>%s</parameter></function></tool_call>",
    "glm": "<tool_call>f<arg_key>x</arg_key><arg_value>%s</arg_value></tool_call>",
    "deepseek": '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": %s}<｜tool▁call▁end｜>',
    "deepseek_v4": (
        '<｜DSML｜tool_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="x" string="false">%s</｜DSML｜parameter>'
        "</｜DSML｜invoke></｜DSML｜tool_calls>"
    ),
    "kimi": '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": %s}<|tool_call_end|>',
    "kimi_k3": (
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="x" type="object"<|sep|>%s'
        "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"
    ),
    "gpt_oss": '<|channel|>commentary to=functions.f<|message|>{"x": %s}',
    "gemma4": "<|tool_call>call:f{x:%s}<tool_call|>",
    "minimax_m2": '<minimax:tool_call><invoke name="f"><parameter name="x">%s</parameter></invoke></minimax:tool_call>',
    "minimax_m3": (
        ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[<x>%s]<]minimax[>[</x>]<]minimax[>[</invoke>'
        "]<]minimax[>[</tool_call>"
    ),
    "seed_oss": "<seed:tool_call><function=f><parameter=x>%s</parameter></function></seed:tool_call>",
    "hunyuan": (
        "<tool_calls><tool_call>f<tool_sep><arg_key>x</arg_key><arg_value>%s</arg_value></tool_call></tool_calls>"
    ),
    "nemotron_v2": '<TOOLCALL>[{"name": "f", "arguments": {"x": %s}}]</TOOLCALL>',
    "phi4_mini": '<|tool_call|>{"name": "f", "arguments": {"x": %s}}<|/tool_call|>',
    "command": '<|START_ACTION|>[{"tool_name": "f", "parameters": {"x": %s}}]<|END_ACTION|>',
    "apertus": '<|tools_prefix|>[{"f": {"x": %s}}]<|tools_suffix|>',
    "solar": '<|tool_call:begin|>0<|tool_call:name|>f<|tool_call:args|>{"x": %s}<|tool_call:end|>',
    "gigachat": 'function call<|role_sep|>\n{"name": "f", "arguments": {"x": %s}}',
    "functionary": '<function=f>{"x": %s}</function>',
}
"""A call f(x=...) in each format, its value as JSON."""
POISON = {
    "half a pair": r'"\ud83d"',
    "half a pair in a list": r'["a", "\ud83d"]',
    "half a pair as a key": r'{"\udc00": 1}',
    "half a pair in a string in a string": r'"\"\\ud83d\""',
    "many digits": "9" * 5000,
    "infinite": "1e999",
    "infinite without an exponent": "9" * 400 + ".0",
    "not a number": "NaN",
    "Infinity": "-Infinity",
    "deep": "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
    "deeper": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"a":' * 2000 + "1" + "}" * 2000,
    "the same key twice": '{"a": 1, "a": 2}',
}


def test_a_poisoned_call_of_each_format_is_there() -> None:
    assert WRITTEN.keys() == set(FORMATS)
    for format, written in WRITTEN.items():
        value = "[1, 2]"
        assert [call.arguments for call in PARSERS[format](written % value).calls] == [{"x": [1, 2]}], format


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("poison", POISON)
def test_what_goes_on_can_be_written_or_the_model_is_told(format: str, poison: str) -> None:
    (call,) = PARSERS[format](WRITTEN[format] % POISON[poison]).calls
    assert (call.arguments is None) == (call.error is not None)
    json.dumps([call.name, call.arguments, call.error], ensure_ascii=False, allow_nan=False).encode()
    if call.arguments is not None and not isinstance(call.arguments["x"], str):
        assert poison == "the same key twice"
        assert call.arguments == {"x": {"a": 2}}


@pytest.mark.parametrize("value", [r'"\ud83d"', r'{"\udc00": 1}', r'["\u0041\ud800"]'])
def test_the_error_names_half_a_pair(value: str) -> None:
    (call,) = PARSERS["hermes"](X % value).calls
    assert call.error is not None
    assert "half of a surrogate pair" in call.error


def test_whole_pairs_pass() -> None:
    (call,) = PARSERS["hermes"](X % r'"\ud83d\ude00 \u00e9 1e999 \\ud83d"').calls
    assert call.arguments == {"x": "😀 é 1e999 \\ud83d"}


def test_arguments_within_a_string_are_checked_too() -> None:
    text = r'<tool_call>{"name": "f", "arguments": "{\"x\": \"\u005cud83d\"}"}</tool_call>'
    (call,) = PARSERS["hermes"](text).calls
    assert call.error is not None
    assert "half of a surrogate pair" in call.error


def test_a_name_is_checked_too() -> None:
    (call,) = PARSERS["hermes"](r'<tool_call>{"name": "f\ud83d", "arguments": {}}</tool_call>').calls
    assert (call.name, call.arguments) == ("unknown", None)


def test_a_hundred_thousand_calls_are_some_and_one_error() -> None:
    calls = PARSERS["hermes"](100_000 * '<tool_call>{"name": "f"}</tool_call>').calls
    assert [call.error for call in calls[:-1]] == MAX_CALLS * [None]
    assert f"a turn is read up to {MAX_CALLS} calls, and the rest of this one was not" in str(calls[-1].error)


def test_a_hundred_thousand_bad_calls_are_some_errors() -> None:
    calls = PARSERS["hermes"](100_000 * "<tool_call>x</tool_call>").calls
    assert len(calls) == MAX_BROKEN + 1
    assert f"up to {MAX_BROKEN} malformed calls" in str(calls[-1].error)


DENSE = {
    "hermes": '<tool_call>{"name": "f", "arguments": {"x": [%s]}}</tool_call>',
    "llama3_json": '<|python_tag|>{"name": "f", "parameters": {"x": [%s]}}',
    "mistral": '[TOOL_CALLS]f[ARGS]{"x": [%s]}',
    "gpt_oss": '<|channel|>commentary to=functions.f<|message|>{"x": [%s]}<|call|>',
    "kimi": '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": [%s]}<|tool_call_end|>',
    "phi4_mini": '<|tool_call|>{"name": "f", "arguments": {"x": [%s]}}<|/tool_call|>',
    "qwen3_coder": "<tool_call><function=f><parameter=x>[%s]</parameter></function></tool_call>",
}


@pytest.mark.parametrize("format", DENSE)
@pytest.mark.parametrize("value", ["[]", "1", '""', '{"a":0}'])
def test_a_megabyte_of_values_in_one_call_is_bounded(format: str, value: str) -> None:
    text = DENSE[format] % ",".join([value] * (MEGABYTE // (len(value) + 1)))
    assert min(work(format, text) for _ in range(3)) < ENOUGH
    (call,) = PARSERS[format](text).calls
    assert call.error is None or "too many values" in call.error
    small = PARSERS[format](DENSE[format] % ",".join([value] * 10_000)).calls[0]
    assert len(small.arguments["x"]) == 10_000


@pytest.mark.parametrize("format", FORMATS)
def test_a_megabyte_of_one_tag_is_bounded(format: str) -> None:
    for marker in MARKERS[format]:
        assert min(work(format, turn(("", marker, marker), MEGABYTE)) for _ in range(2)) < ENOUGH
