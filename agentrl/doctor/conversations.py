"""Builds made-up conversations on a row, to test template, tools and masks without a model."""

from collections.abc import Sequence
from typing import Any

from agentrl.tools.examples import example_arguments
from agentrl.trajectory.message import Message

ANSWER = "Here is the answer."
THOUGHT = "Let me think about this."


def assistant(content: str, *, calls: Sequence[dict[str, Any]] = (), reasoning: str | None = None) -> Message:
    """An assistant's message in OpenAI form."""
    message: Message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def call(schema: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """A call of a tool with made-up arguments that fit its schema."""
    function = schema["function"]
    arguments = example_arguments(function.get("parameters") or {})
    return {
        "id": f"agentrl{number:02d}",
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def with_tools(
    prompt: Sequence[Message], schemas: Sequence[dict[str, Any]], results: Sequence[str] = ()
) -> list[Message]:
    """A conversation that calls each tool in a separate turn, then answers; `results`: answers of the tools."""
    messages = list(prompt)
    for number, schema in enumerate(schemas):
        made = call(schema, number)
        messages.append(assistant("", calls=[made]))
        text = results[number] if number < len(results) else "42"
        name = schema["function"]["name"]
        messages.append({"role": "tool", "name": name, "tool_call_id": made["id"], "content": text})
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
