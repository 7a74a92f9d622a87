"""Calls as JSON between two tags: what hermes, deepseek, kimi and others share."""

from collections.abc import Callable
from typing import Any

from agentrl.chat.parsers.blocks import Tags, parse_blocks, require_close
from agentrl.chat.parsers.calls import MAX_CALLS, Malformed, make_call, read_json
from agentrl.trajectory.message import Call, Parsed

ReadBody = Callable[[str, int, int], tuple[Call, int]]
"""(text, position after the opening tag, index of the call) -> the call and where its body ends; raises Malformed."""
MakeCall = Callable[[Any, str, int], Call]
"""(decoded JSON, the JSON as written, index of the call) -> the call; raises Malformed."""


def parse_tagged(text: str, tags: Tags, read: ReadBody) -> Parsed:
    """All calls of a turn, one between each pair of tags."""

    def block(text: str, body: int, index: int) -> tuple[list[Call], int]:
        call, end = read(text, body, index)
        return [call], require_close(text, end, tags, call.name)

    return parse_blocks(text, tags, block)


def parse_lists(text: str, tags: Tags, make: MakeCall = make_call) -> Parsed:
    """All calls of a turn, a list of them, or a single one, between each pair of tags."""

    def block(text: str, body: int, index: int) -> tuple[list[Call], int]:
        value, end = read_json(text, body)
        after = require_close(text, end, tags, "unknown")
        return read_list(value, text[body:end], index, make), after

    return parse_blocks(text, tags, block)


def read_list(value: Any, seed: str, index: int, make: MakeCall = make_call) -> list[Call]:
    """The calls in a decoded list, or the one that stands without a list. Raises Malformed."""
    items = value if isinstance(value, list) else [value]
    if not items:
        raise Malformed("the list of calls is empty")
    if len(items) > MAX_CALLS:
        raise Malformed(f"at most {MAX_CALLS} calls are read of one turn")
    return [make(item, seed, index + i) for i, item in enumerate(items)]


def read_named(text: str, body: int, index: int) -> tuple[Call, int]:
    """A call as `{"name": ..., "arguments": {...}}`."""
    value, end = read_json(text, body)
    return make_call(value, text[body:end], index), end
