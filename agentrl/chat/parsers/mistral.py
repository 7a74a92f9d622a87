"""Mistral. To v3: [TOOL_CALLS] and a JSON list; from v11 on: [TOOL_CALLS]NAME[ARGS]{...}, one tag a call."""

import re
from typing import Any

from agentrl.chat.message import Call, Parsed
from agentrl.chat.parsers.calls import Malformed, broken, join_text, make_call, read_json, typed_call
from agentrl.chat.parsers.thinking import split_thinking
from agentrl.chat.template import Tools

TAG = "[TOOL_CALLS]"
EXPECTED = '[TOOL_CALLS][{"name": ..., "arguments": {...}}] or [TOOL_CALLS]NAME[ARGS]{...}, as your instructions say'
_HEADER = re.compile(r"\s*([\w.\-]+)\s*(?:\[CALL_ID\]\s*(\S+?)\s*(?=\[ARGS\]))?(?:\[ARGS\]\s*)?(?=\{)")

_ID = re.compile(r"[A-Za-z0-9]{9}")


def parse(text: str, tools: Tools = None) -> Parsed:
    """See `agentrl.chat.parsers`."""
    parsed, answer = split_thinking(text)
    content, tag, _ = answer.partition(TAG)
    if not tag:
        parsed.content = answer
        return parsed
    pieces, at = [content], len(content)
    while (start := answer.find(TAG, at)) >= 0:
        pieces.append(answer[at:start] if start > len(content) else "")
        calls, at = _read(answer, start + len(TAG), len(parsed.calls))
        parsed.calls += calls
    parsed.content = join_text([*pieces, answer[at:]])
    return parsed


def _read(text: str, body: int, index: int) -> tuple[list[Call], int]:
    try:
        header = _HEADER.match(text, body)
        if header is None:
            return _read_list(text, body, index)
        value, end = read_json(text, header.end())
        return [typed_call(header[1], value, text[body:end], index, identity=_usable(header[2]))], end
    except Malformed as error:
        following = text.find(TAG, body)
        end = following if following >= 0 else len(text)
        return [broken(str(error), text[body:end], index, expected=EXPECTED)], end


def _read_list(text: str, body: int, index: int) -> tuple[list[Call], int]:
    value, end = read_json(text, body)
    items = value if isinstance(value, list) else [value]
    if not items:
        raise Malformed("the list of calls is empty")
    seed = text[body:end]
    return [make_call(item, seed, index + i, identity=_identity(item)) for i, item in enumerate(items)], end


def _identity(item: Any) -> str | None:
    return _usable(item.get("id")) if isinstance(item, dict) else None


def _usable(identity: Any) -> str | None:
    """The model's own id, if the template will take it back: an odd one must not stop the run."""
    return identity if isinstance(identity, str) and _ID.fullmatch(identity) else None
