"""Mistral. To v3: [TOOL_CALLS] and a JSON list; from v11 on: [TOOL_CALLS]NAME[ARGS]{...}, one tag a call."""

import re
from typing import Any

from agentrl.chat.parsers.blocks import Tags, parse_blocks, read_list
from agentrl.chat.parsers.calls import make_call, read_json, typed_call
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Call, Parsed, Tools

TAGS = Tags(
    ("[TOOL_CALLS]",),
    "",
    '[TOOL_CALLS][{"name": ..., "arguments": {...}}] or [TOOL_CALLS]NAME[ARGS]{...}, as your instructions say',
)
_HEADER = re.compile(
    r"\s*+([\w.\-]{1,256}+)\s*+(?:\[CALL_ID\]\s*+([^\s\[]{1,64}+)\s*+(?=\[ARGS\]))?(?:\[ARGS\]\s*+)?(?=\{)"
)
_ID = re.compile(r"[A-Za-z0-9]{9}")


@tool_parser("mistral")
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn."""
    return parse_blocks(text, TAGS, _read)


def _read(text: str, body: int, index: int) -> tuple[list[Call], int]:
    header = _HEADER.match(text, body)
    value, end = read_json(text, header.end() if header else body)
    seed = text[body:end]
    if header is None:
        return read_list(value, seed, index, _make), end
    return [typed_call(header[1], value, seed, index, identity=_usable(header[2]))], end


def _make(item: Any, seed: str, index: int) -> Call:
    return make_call(item, seed, index, identity=_usable(item.get("id")) if isinstance(item, dict) else None)


def _usable(identity: Any) -> str | None:
    """The model's own id, if the template will take it back: an odd one must not stop the run."""
    return identity if isinstance(identity, str) and _ID.fullmatch(identity) else None
