"""Command R7B and Command A: <|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}]..."""

from typing import Any

from agentrl.chat.parsers.blocks import Tags, parse_lists
from agentrl.chat.parsers.calls import Malformed, typed_call
from agentrl.chat.template import Tools
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Call, Parsed

TAGS = Tags(
    ("<|START_ACTION|>",),
    "<|END_ACTION|>",
    '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}]<|END_ACTION|>',
    channels=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    signs=('"tool_name"',),
)


@tool_parser("command")
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    return parse_lists(text, TAGS, _make)


def _make(item: Any, seed: str, index: int) -> Call:
    if not isinstance(item, dict):
        raise Malformed(f"expected a JSON object, got {type(item).__name__}")
    name = item.get("tool_name")
    if not isinstance(name, str) or not name:
        raise Malformed('the key "tool_name" is missing or not a string')
    return typed_call(name, item.get("parameters", {}), seed, index)
