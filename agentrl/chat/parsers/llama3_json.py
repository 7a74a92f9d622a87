"""Llama 3: the turn is {"name": ..., "parameters": {...}}, after <|python_tag|> or alone; several split by ";"."""

import re

from agentrl.chat.message import Parsed
from agentrl.chat.parsers.calls import Malformed, broken, make_call, read_json
from agentrl.chat.parsers.pythonic import parse_builtin
from agentrl.chat.parsers.thinking import split_thinking
from agentrl.chat.template import Tools

TAG = "<|python_tag|>"
EXPECTED = '{"name": ..., "parameters": {...}}'
_LOOKS_LIKE_CALL = re.compile(r'\[?\s*\{\s*"(?:name|type)"\s*:')
_SEPARATOR = re.compile(r"[\s;,]*")


def parse(text: str, tools: Tools = None) -> Parsed:
    """See `agentrl.chat.parsers`."""
    parsed, answer = split_thinking(text)
    content, tag, body = answer.partition(TAG)
    if not tag:
        content, body = "", answer
    if not tag and not _LOOKS_LIKE_CALL.match(body.lstrip()):
        parsed.content = answer
        return parsed
    builtin = parse_builtin(body) if tag else None
    parsed.content = content.rstrip()
    if builtin is not None:
        parsed.calls.append(builtin)
        return parsed
    _read_objects(parsed, body)
    return parsed


def _read_objects(parsed: Parsed, body: str) -> None:
    at = 0
    while at < len(body.rstrip()):
        try:
            value, end = read_json(body, at)
            for one in value if isinstance(value, list) else [value]:
                parsed.calls.append(make_call(one, body[at:end], len(parsed.calls)))
        except Malformed as error:
            parsed.calls.append(broken(str(error), body[at:], len(parsed.calls), expected=EXPECTED))
            return
        at = _next(body, end)


def _next(body: str, end: int) -> int:
    separator = _SEPARATOR.match(body, end)
    return separator.end() if separator else end
