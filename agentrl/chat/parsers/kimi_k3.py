"""Kimi K3: <|open|>call tool="NAME" index="1"<|sep|><|open|>argument key="KEY" type="string"<|sep|>value..."""

import re
from typing import Any

from agentrl.chat.parsers.blocks import Tags
from agentrl.chat.parsers.calls import Malformed, read_value
from agentrl.chat.parsers.tagged_arguments import Grammar, parse_spelled
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Parsed, Tools

_CALL = '<|open|>call tool="NAME" index="1"<|sep|><|open|>argument key="KEY" type="string"<|sep|>VALUE'
_ENDS = "<|close|>argument<|sep|><|close|>call<|sep|>"
_ATTRIBUTES = r"[^<>\n]{0,256}+"


def _value(argument: re.Match[str], value: str) -> dict[str, Any]:
    """Text or JSON, as the call itself says; or all arguments as one JSON object."""
    key, kind = argument[1], argument[2]
    if key is not None and kind == "string":
        return {_plain(key): value}
    read = read_value(value)
    if key is not None:
        return {_plain(key): read}
    if not isinstance(read, dict):
        raise Malformed("its arguments must be a JSON object")
    return read


def _plain(attribute: str) -> str:
    return attribute.replace("&quot;", '"').replace("&amp;", "&")


GRAMMAR = Grammar(
    Tags(
        ("<|open|>tools<|sep|>",),
        "<|close|>tools<|sep|>",
        f"<|open|>tools<|sep|>{_CALL}{_ENDS}<|close|>tools<|sep|>",
        channels=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        signs=("<|open|>call",),
        several=True,
    ),
    header=re.compile(rf'\s*+<\|open\|>call tool="([^"\n]{{1,256}}+)"{_ATTRIBUTES}<\|sep\|>'),
    argument=re.compile(
        r'\s*+<\|open\|>(?:argument key="([^"\n]{1,256}+)" type="([a-z]{1,16})"|json type="object")<\|sep\|>'
    ),
    value_end=re.compile(r"<\|close\|>(?:argument|json)<\|sep\|>(?=\s*+<\|(?:open\|>argument |close\|>call))"),
    footer=re.compile(r"\s*+<\|close\|>call<\|sep\|>"),
    read_value=_value,
)


@tool_parser("kimi_k3")
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    return parse_spelled(text, GRAMMAR, tools)
