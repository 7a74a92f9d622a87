"""Phi-4-mini: <|tool_call|>{"name": ..., "arguments": {...}}<|/tool_call|>, or functools[{...}, ...] with no end."""

from agentrl.chat.parsers.blocks import Tags, parse_blocks, parse_lists, read_list
from agentrl.chat.parsers.calls import read_json
from agentrl.chat.template import Tools
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Call, Parsed

TAGS = Tags(
    ("<|tool_call|>",),
    "<|/tool_call|>",
    '<|tool_call|>{"name": ..., "arguments": {...}}<|/tool_call|>',
    signs=('"name"',),
)
LIST_TAGS = Tags(("functools[",), "", 'functools[{"name": ..., "arguments": {...}}]')


@tool_parser("phi4_mini")
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    if LIST_TAGS.open[0] in text and TAGS.open[0] not in text:
        return parse_blocks(text, LIST_TAGS, _read)
    return parse_lists(text, TAGS)


def _read(text: str, body: int, index: int) -> tuple[list[Call], int]:
    value, end = read_json(text, body - len("["))
    return read_list(value, text[body:end], index), end
