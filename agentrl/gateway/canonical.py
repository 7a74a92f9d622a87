"""Recognises a history that a client sends again, however it wrote it down.

Invariant: two messages have one canonical form when they differ only in white space at their ends, in the order and
spelling of JSON arguments, in ids, cache marks and reasoning (also where it stands before the text, between its marks),
or in a text given as one part or as a string.
"""

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import orjson

from agentrl.chat.thinking import BLOCKS, begins_with
from agentrl.trajectory.message import TOOL_ROLES, Message

Digest = bytes
"""Digest of a conversation up to a message, tools included."""

CACHE_MARK = b'"cache_control":'
"""Clients move it to their last message, so it is no part of any."""
EXACT = 2**53
"""Whole numbers beyond it are floats in JavaScript, and in fast JSON parsers beyond 64 bits."""
LARGEST = 10**308
"""Largest integer that is compared as a float."""
ROLES = {"developer": "system", **dict.fromkeys(TOOL_ROLES, "tool")}


def start(tools: Sequence[Any]) -> Digest:
    """The digest of a conversation without messages."""
    return _digest(b"", _json(tools))


def after(before: Digest, message: Message) -> Digest:
    """The digest of a conversation that goes on with `message`."""
    return _digest(before, _json(canonical(message)))


def mark(before: Digest, item: Any) -> Digest:
    """The digest of a client's items that go on with `item`, as the client wrote it but for its cache marks."""
    data = _json(item)
    return _digest(before, _json(_plain(item)) if CACHE_MARK in data else data)


def canonical(message: Message) -> list[Any]:
    """Role, content and calls of a message in their canonical form."""
    role = message["role"]
    content = message.get("content") or ""
    said = _text(role, content) if isinstance(content, str) else [_plain(part) for part in content]
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = [[function["name"], _plain(function["arguments"])] for function in functions]
    return [ROLES.get(role, role), said, calls]


def marks(message: Message) -> frozenset[str]:
    """The marks that tell answers of one canonical form apart: the ids of their calls, and their thinking."""
    _, thought = shown(message)
    return frozenset(filter(None, (thought, *(call["id"] for call in message.get("tool_calls") or ()))))


def shown(message: Message) -> tuple[str, str]:
    """Text and thinking of a turn, apart."""
    text = str(message.get("content") or "")
    apart = message.get("reasoning_content", message.get("thought"))
    if apart is not None:
        return text.strip(), str(apart).strip()
    opened = begins_with(text)
    closing = BLOCKS.get(opened, "")
    if not opened:
        return text.strip(), ""
    thought, found, rest = text.lstrip().removeprefix(opened).partition(closing)
    return (rest.strip(), thought.strip()) if found else ("", thought.strip())


def _text(role: str, content: str) -> str:
    """Without the white space at its ends, and the model's without its reasoning."""
    opened = begins_with(content) if role == "assistant" else ""
    _, found, rest = content.partition(BLOCKS[opened]) if opened else ("", "", "")
    return (rest if found else content).strip()


def _plain(value: Any) -> Any:
    """The value with whole floats as integers: JavaScript writes 1.0 as 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and EXACT < abs(value) < LARGEST:
        return int(float(value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if key != "cache_control"}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.strip() if isinstance(value, str) else value


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # half a surrogate pair, or an integer of more than 64 bits
        return json.dumps(value, sort_keys=True).encode()


def _digest(before: Digest, data: bytes) -> Digest:
    return blake2b(before + data, digest_size=16).digest()
