"""Calls that spell each argument out between tags: the loop that qwen3_coder and glm share."""

import re
from dataclasses import dataclass
from typing import Any

from agentrl.chat.message import Call, Parsed, call_id
from agentrl.chat.parsers.calls import UNKNOWN, Malformed, broken, convert, join_text
from agentrl.chat.parsers.thinking import split_thinking
from agentrl.chat.template import Tools

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Grammar:
    """How a format writes a call inside <tool_call>...</tool_call>."""

    header: re.Pattern[str]
    """Group 1 is the tool's name."""
    argument: re.Pattern[str]
    """Group 1 is the key, group 2 the value."""
    footer: re.Pattern[str]
    """From the last argument to the end of the call, closing tag included."""
    expected: str


def parse_spelled(text: str, grammar: Grammar, tools: Tools) -> Parsed:
    """All calls of a turn, in order; text between them becomes content."""
    parsed, text = split_thinking(text)
    pieces, at = [], 0
    while (start := text.find(OPEN, at)) >= 0:
        pieces.append(text[at:start])
        call, at = _read_one(text, start + len(OPEN), len(parsed.calls), grammar, tools)
        parsed.calls.append(call)
    pieces.append(text[at:])
    parsed.content = join_text(pieces) if parsed.calls else text
    return parsed


def _read_one(text: str, body: int, index: int, grammar: Grammar, tools: Tools) -> tuple[Call, int]:
    header = grammar.header.match(text, body)
    name = header[1].strip() if header else UNKNOWN
    try:
        if header is None:
            raise Malformed("no tool name after <tool_call>")
        arguments, end = _read_arguments(text, header.end(), name, grammar, tools)
        return Call(call_id(text[body:end], index), name, arguments), end
    except Malformed as error:
        close, following = text.find(CLOSE, body), text.find(OPEN, body)
        end = close + len(CLOSE) if close >= 0 and not 0 <= following < close else following
        end = end if end >= 0 else len(text)
        return broken(str(error), text[body:end], index, expected=grammar.expected, name=name), end


def _read_arguments(text: str, at: int, name: str, grammar: Grammar, tools: Tools) -> tuple[dict[str, Any], int]:
    arguments: dict[str, Any] = {}
    while (argument := grammar.argument.match(text, at)) is not None:
        key = argument[1].strip()
        if key in arguments:
            raise Malformed(f"the argument {key!r} is there twice")
        arguments[key] = convert(argument[2], name, key, tools)
        at = argument.end()
    footer = grammar.footer.match(text, at)
    if footer is None:
        rest = text[at:].strip()
        raise Malformed(f"cannot read it from {rest[:30]!r} on" if rest else "its closing tags are missing")
    return arguments, footer.end()
