"""Builds made-up conversations on a row, to test template, tools and masks without a model."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.tools.examples import example_arguments
from agentrl.trajectory.message import Message

ANSWER = "Here is the answer."
THOUGHT = "Let me think about this."
Tried = tuple[dict[str, Any], str]
"""Arguments of a call, and the tool's answer."""


def assistant(content: str, *, calls: Sequence[dict[str, Any]] = (), reasoning: str | None = None) -> Message:
    """An assistant's message in OpenAI form."""
    message: Message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def with_tools(
    prompt: Sequence[Message], schemas: Sequence[dict[str, Any]], tried: Mapping[str, Tried] | None = None
) -> list[Message]:
    """A conversation that calls each tool in a separate turn, then answers; `tried`: calls of the tools, by name."""
    messages = list(prompt)
    for number, schema in enumerate(schemas):
        function, call_id = schema["function"], f"agentrl{number:02d}"
        name = function["name"]
        arguments, text = (tried or {}).get(name) or (example_arguments(function.get("parameters") or {}), "42")
        made = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        messages.append(assistant("", calls=[made]))
        messages.append({"role": "tool", "name": name, "tool_call_id": call_id, "content": text})
    return [*messages, assistant(ANSWER)]


def with_follow_up(prompt: Sequence[Message]) -> list[Message]:
    """Two answers with a user message between them."""
    return [*prompt, assistant(ANSWER), {"role": "user", "content": "Are you sure?"}, assistant("Yes.")]


def with_thought(prompt: Sequence[Message], *, field: bool) -> list[Message]:
    """The messages with reasoning before each answer: in a separate field, or in the text."""

    def thoughtful(text: str) -> Message:
        inline = f"<think>\n{THOUGHT}\n</think>\n\n{text}"
        return assistant(text, reasoning=THOUGHT) if field else assistant(inline)

    return [*prompt, thoughtful(ANSWER), {"role": "user", "content": "Are you sure?"}, thoughtful("Yes.")]
