"""Hermes and Qwen: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number of them."""

from agentrl.chat.message import Call, Parsed
from agentrl.chat.parsers.calls import make_call, read_json
from agentrl.chat.parsers.tagged_json import Tags, parse_tagged
from agentrl.chat.template import Tools

TAGS = Tags("<tool_call>", "</tool_call>", '<tool_call>{"name": ..., "arguments": {...}}</tool_call>')


def parse(text: str, tools: Tools = None) -> Parsed:
    """See `agentrl.chat.parsers`."""
    return parse_tagged(text, TAGS, _read)


def _read(text: str, body: int, index: int) -> tuple[Call, int]:
    value, end = read_json(text, body)
    return make_call(value, text[body:end], index), end
