"""Hermes and Qwen: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number of them."""

from agentrl.chat.parsers.blocks import Tags, parse_tagged, read_named
from agentrl.chat.template import Tools
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Parsed

TAGS = Tags(
    ("<tool_call>",),
    "</tool_call>",
    '<tool_call>{"name": ..., "arguments": {...}}</tool_call>',
    signs=('"name"',),
)


@tool_parser("hermes", "qwen")
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    return parse_tagged(text, TAGS, read_named)
