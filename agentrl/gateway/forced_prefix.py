"""The beginning of a call, for requests that require one.

Invariant: these tokens are the template's own and are not trained on; the model continues them, so its tokens and their
log-probs are those of any other turn.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

from agentrl.chat import Chat
from agentrl.core.errors import UserError
from agentrl.core.prefixes import common_length
from agentrl.trajectory.message import Message

ANY_NAME = ("agentrl_first", "other_agentrl")
"""Names that share no beginning."""
ANY_ARGUMENTS: tuple[dict[str, Any], ...] = ({}, {"a": 1}, {"b": "x"})


def forced_prefix(chat: Chat, tools: Sequence[dict[str, Any]], name: str) -> list[int]:
    """Tokens up to the name of a tool, or with `name` up to its arguments. Raises UserError where there are none."""
    if name and name not in {tool["function"]["name"] for tool in tools}:
        raise UserError(f"tool_choice: no tool is named {name!r}")
    cases = [(name, arguments) for arguments in ANY_ARGUMENTS] if name else [(made_up, {}) for made_up in ANY_NAME]
    written = [_written(chat, tools, *case) for case in cases]
    shared = reduce(lambda one, other: one[: common_length(one, other)], written)
    if not shared:
        raise UserError("tool_choice: this template shows no calls, so none can be begun; leave it out")
    return chat.template.encode_within(shared)


def _written(chat: Chat, tools: Sequence[dict[str, Any]], name: str, arguments: dict[str, Any]) -> str:
    """A turn with this call. Raises UserError."""
    call = {"id": "agentrl00", "type": "function", "function": {"name": name, "arguments": arguments}}
    said: list[Message] = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    (turn,) = chat.transcript(said, list(tools)).turn_ids().values()
    return chat.decode(turn)
