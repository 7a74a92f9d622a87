"""Gemma 4: <|tool_call>call:NAME{key:<|"|>text<|"|>,other:1}<tool_call|>, and its thinking in a channel."""

import re

from agentrl.chat.parsers.blocks import Tags, parse_blocks
from agentrl.chat.parsers.calls import Malformed, match_at, naming, near, typed_call
from agentrl.chat.parsers.literals import Notation, Values
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Call, Parsed, Tools

QUOTE = '<|"|>'
TAGS = Tags(
    ("<|tool_call>",),
    "<tool_call|>",
    f"<|tool_call>call:NAME{{key:{QUOTE}text{QUOTE},other:1}}<tool_call|>",
    signs=("call:",),
)
_HEADER = re.compile(r"\s*+call:([^\s{}<>]{1,256}+)(?=\{)")


def _string(text: str, at: int) -> tuple[str, int] | None:
    if not text.startswith(QUOTE, at):
        return None
    start = at + len(QUOTE)
    end = text.find(QUOTE, start)
    if end < 0:
        raise Malformed(f"a string is not closed {near(text, at)}")
    return text[start:end], end + len(QUOTE)


NOTATION = Notation(_string, {"true": True, "false": False, "null": None, "None": None}, bare_keys=True, brackets="[{")


@tool_parser("gemma4", stops=("<turn|>", "<|tool_response>"))
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    return parse_blocks(text, TAGS, _read)


def _read(text: str, body: int, index: int) -> tuple[list[Call], int]:
    header = match_at(_HEADER, text, body, "no call:NAME{ after its opening tag")
    with naming(header[1]):
        arguments, end = Values(text, NOTATION).read(header.end())
        return [typed_call(header[1], arguments, text[body:end], index)], end
