"""Llama 3 and 4: {"name": ..., "parameters": {...}}, alone, after <|python_tag|> or after an answer's text."""

import re

from agentrl.chat.parsers.blocks import read_list
from agentrl.chat.parsers.calls import Malformed, broken, make_call, read_json, too_many
from agentrl.chat.parsers.pythonic import parse_builtin
from agentrl.chat.parsers.reasoning import calls_in_thinking, split_thinking
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Parsed, Tools

TAG = "<|python_tag|>"
EXPECTED = '{"name": ..., "parameters": {...}}'
_LOOKS_LIKE_CALL = re.compile(r'\s*+\[?\s*+\{\s*+"(?:name|type)"\s*+:')
# Llama 4's template writes a turn's text, at times between these tags, and its calls without anything between them.
_AFTER_TEXT = re.compile(r'\{"name": "[^"\\\n]{1,256}+", "parameters": ')
_TEXT_TAGS = re.compile(r"<\|python_(?:start|end)\|>")
_SEPARATOR = re.compile(r"[\s;,]*+")


@tool_parser("llama3_json", stops=("<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>"))
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    parsed, answer = split_thinking(text)
    content, tag, body = answer.partition(TAG)
    if tag:
        return _after_tag(parsed, content, body)
    if _LOOKS_LIKE_CALL.match(answer):
        _read_objects(parsed, answer)
        return parsed
    found = _AFTER_TEXT.search(answer)
    if found is not None:
        return _after_text(parsed, answer, found.start())
    parsed.content = answer
    parsed.calls += calls_in_thinking(parsed, answer, (TAG,), EXPECTED)
    return parsed


def _after_tag(parsed: Parsed, content: str, body: str) -> Parsed:
    parsed.content = content.rstrip()
    builtin = parse_builtin(body)
    if builtin is not None:
        parsed.calls.append(builtin)
        return parsed
    _read_objects(parsed, body)
    return parsed


def _after_text(parsed: Parsed, answer: str, start: int) -> Parsed:
    """Calls that end the turn; the same further up, say in an example, is text."""
    read = Parsed("")
    _read_objects(read, answer[start:])
    if any(call.error for call in read.calls):
        parsed.content = answer
        return parsed
    parsed.calls = read.calls
    parsed.content = _TEXT_TAGS.sub("", answer[:start]).rstrip()
    return parsed


def _read_objects(parsed: Parsed, body: str) -> None:
    at = _next(body, 0)
    while at < len(body):
        if (last := too_many(parsed.calls, EXPECTED)) is not None:
            parsed.calls.append(last)
            return
        try:
            value, end = read_json(body, at)
            parsed.calls += read_list(value, body[at:end], len(parsed.calls), make_call)
        except Malformed as error:
            parsed.calls.append(broken(str(error), body[at:], len(parsed.calls), expected=EXPECTED))
            return
        at = _next(body, end)


def _next(body: str, end: int) -> int:
    separator = _SEPARATOR.match(body, end)
    return separator.end() if separator else end
