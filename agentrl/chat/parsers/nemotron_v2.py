"""Nemotron-Nano-v2: <TOOLCALL>[{"name": ..., "arguments": {...}}, ...]</TOOLCALL>."""

from agentrl.chat.parsers.blocks import Tags, parse_lists
from agentrl.chat.template import Tools
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Parsed

TAGS = Tags(
    ("<TOOLCALL>",),
    "</TOOLCALL>",
    '<TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>',
    signs=('"name"',),
)


@tool_parser("nemotron_v2")
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    return parse_lists(text, TAGS)
