"""Apertus: <|tools_prefix|>[{"NAME": {...}}, ...]<|tools_suffix|>, which also ends its thinking."""

from typing import Any

from agentrl.chat.parsers.blocks import Tags, parse_lists
from agentrl.chat.parsers.calls import Malformed, typed_call
from agentrl.chat.template import Tools
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Call, Parsed

TAGS = Tags(
    ("<|tools_prefix|>",),
    "<|tools_suffix|>",
    '<|tools_prefix|>[{"NAME": {...}}]<|tools_suffix|>',
    noise=("<|inner_suffix|>",),
    signs=("{",),
)


@tool_parser("apertus")
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    return parse_lists(text, TAGS, _make)


def _make(item: Any, seed: str, index: int) -> Call:
    if not isinstance(item, dict) or len(item) != 1:
        raise Malformed("each call is an object with one key, the tool's name")
    ((name, arguments),) = item.items()
    return typed_call(name, arguments, seed, index)
