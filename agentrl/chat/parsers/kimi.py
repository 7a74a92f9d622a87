"""Kimi K2: <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|> in a section."""

import re

from agentrl.chat.parsers.blocks import Tags, parse_tagged
from agentrl.chat.parsers.calls import match_at, read_json, typed_call
from agentrl.chat.template import Tools
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Call, Parsed

TAGS = Tags(
    ("<|tool_call_begin|>",),
    "<|tool_call_end|>",
    "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>",
    noise=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    signs=("<|tool_call_argument_begin|>",),
)
_HEADER = re.compile(r"\s*+((?:functions\.)?([^<>:\s]{1,256}+):\d{1,9}+)\s*+<\|tool_call_argument_begin\|>")


@tool_parser("kimi")
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    return parse_tagged(text, TAGS, _read)


def _read(text: str, body: int, index: int) -> tuple[Call, int]:
    missing = "no functions.NAME:NUMBER and <|tool_call_argument_begin|> after its opening tag"
    header = match_at(_HEADER, text, body, missing)
    value, end = read_json(text, header.end())
    return typed_call(header[2], value, text[body:end], index, identity=header[1]), end
