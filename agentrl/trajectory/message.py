"""Messages, tool calls and replies: the data between chat format and agent loop."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.core.json_text import complaint, whole

Message = dict[str, Any]
"""An OpenAI-style message: role, content, tool_calls?, tool_call_id?, name?, reasoning_content?"""
Tools = Sequence[dict[str, Any]] | None
"""Schemas of the tools that a prompt shows."""

TOOL_ROLES = frozenset({"tool", "function", "ipython", "observation"})
"""Roles under which tool results appear."""


@dataclass
class Call:
    """One tool call as the model wrote it. Exactly one of `arguments` and `error` is set."""

    id: str
    name: str
    """Best guess where the call is malformed."""
    arguments: dict[str, Any] | None
    error: str | None = None
    """The mistake in a malformed call, worded for the model."""


@dataclass
class Parsed:
    """An assistant turn, parsed."""

    content: str
    """Text outside calls and thinking."""
    calls: list[Call] = field(default_factory=list)
    reasoning: str | None = None
    """The thinking without its tags; None: the turn has no thinking."""
    preamble: str = ""
    """The thinking as written, tags and white space included, for templates that keep it in the content."""


@dataclass
class Reply:
    """One sampled assistant turn."""

    message: Message
    """For the history: content, reasoning_content where the template reads it, tool_calls with arguments as a dict.
    A turn with a malformed call keeps its text in the content and has no tool_calls."""
    calls: list[Call]
    """All calls in the order written, malformed ones included."""
    closed: bool
    """A stop token ended the turn (otherwise its length did)."""


def text_of(message: Message) -> str:
    """The text of a message's content, the text parts of a list joined."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))


def system_message(text: str | None) -> list[Message]:
    """The message of a system prompt; none without a text."""
    return [{"role": "system", "content": text}] if text else []


def call_id(seed: str, index: int) -> str:
    """Nine letters and digits, as Mistral's templates demand; the same text gives the same id on every run."""
    return hashlib.blake2s(f"{index}:{seed}".encode("utf-8", "replace"), digest_size=8).hexdigest()[:9]


def checked(call: Call) -> Call:
    """The call; if its text is not valid JSON or UTF-8, it gets an `error` for the model and no arguments."""
    call.name = whole(call.name)
    wrong = complaint(call.arguments) if call.error is None else None
    if wrong is not None:
        call.arguments, call.error = None, f"The call of {call.name} cannot be carried out: {wrong}."
    call.error = whole(call.error) if call.error is not None else None
    return call


def as_tool_call(call: Call) -> dict[str, Any]:
    """The entry of an assistant message's `tool_calls`."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
