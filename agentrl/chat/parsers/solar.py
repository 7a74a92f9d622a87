"""Solar Open: <|tool_call:begin|>ID<|tool_call:name|>NAME<|tool_call:args|>{...}<|tool_call:end|>."""

import re

from agentrl.chat.parsers.blocks import Tags, parse_tagged
from agentrl.chat.parsers.calls import match_at, read_json, typed_call
from agentrl.chat.template import Tools
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Call, Parsed

TAGS = Tags(
    ("<|tool_call:begin|>",),
    "<|tool_call:end|>",
    "<|tool_call:begin|>ID<|tool_call:name|>NAME<|tool_call:args|>{...}<|tool_call:end|>",
    channels=(
        "<|begin|>assistant",
        "<|content|>",
        "<|end|>",
        "<|tool_calls|>",
        "<|calls|>",
        "<|flush|>",
    ),
    signs=("<|tool_call:args|>",),
)
_HEADER = re.compile(r"\s*+([\w\-]{0,64}+)\s*+<\|tool_call:name\|>\s*+([^<>\s]{1,256}+)\s*+<\|tool_call:args\|>")


@tool_parser("solar", stops=("<|calls|>", "<|flush|>"))
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    return parse_tagged(text, TAGS, _read)


def _read(text: str, body: int, index: int) -> tuple[Call, int]:
    header = match_at(_HEADER, text, body, "no <|tool_call:name|>NAME<|tool_call:args|> after its opening tag")
    value, end = read_json(text, header.end())
    return typed_call(header[2], value, text[body:end], index, identity=header[1] or None), end
