"""The lines of NeMo Gym's data files, and the answers to them, both as the Responses API has them.

A line is a request, and the fields that its server asks for. Invariant: the id of each call is its own: the same text
may be called twice.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.core.errors import UserError
from agentrl.gateway.canonical import shown
from agentrl.gateway.conversation import name_results
from agentrl.gateway.protocols import responses
from agentrl.gateway.request import ModelAnswer
from agentrl.http.refusals import Refused
from agentrl.trajectory.message import Call, Message, text_of

REQUEST = "responses_create_params"
NOTHING = "(the server begins)"


@dataclass(frozen=True)
class GymLine:
    """A line."""

    prompt: list[Message]
    """Empty where the server begins the conversation."""
    schemas: list[dict[str, Any]]
    """Schemas of the tools."""

    @property
    def tools(self) -> list[str]:
        """Names of the tools."""
        return [schema["function"]["name"] for schema in self.schemas]

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> "GymLine":
        """Raises UserError for what is not served."""
        written = line.get(REQUEST)
        if not isinstance(written, Mapping):
            raise UserError(f"it has no {REQUEST}: write lines of NeMo Gym, {{'{REQUEST}': {{'input': ...}}, ...}}")
        if "input" not in written:
            raise UserError(f"{REQUEST} has no input: write the prompts into the file first (`gym dataset --help`)")
        begun = bool(written["input"])
        try:
            request = responses.read(dict(written) if begun else {**written, "input": NOTHING})
            conversation = request.conversation
            prompt = [*conversation.head, *(conversation.reader(conversation.items, 0) if begun else [])]
        except Refused as error:
            raise UserError(f"{REQUEST}: {error}") from None
        if request.unmet:
            raise UserError(f"{REQUEST}: {request.unmet[0]} is none that runs here: leave the row out")
        name_results(prompt, {})
        return cls(prompt, request.tools)


def response_of(
    params: Mapping[str, Any], messages: Sequence[Message], *, full: bool, prompt: int = 0, sampled: int = 0
) -> dict[str, Any]:
    """The response to `params`, a request, in which `messages` follow its prompt. `full`: there was no room for more;
    `prompt` and `sampled`: numbers of tokens."""
    answer = ModelAnswer(
        id=f"{len(messages)}",
        created=int(time.time()),
        finish="length" if full else "stop",
        prompt_tokens=prompt,
        completion_tokens=sampled,
        body=params,
    )
    return {**responses.whole(answer), "output": list(output_of(messages))}


def output_of(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """Items of messages. Answers to malformed calls, which are text of the model's, are left out."""
    ids: dict[str, str] = {}
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            ids = {call["id"]: f"call_{number}_{i}" for i, call in enumerate(message.get("tool_calls") or ())}
            yield from _written_items(message, ids, number)
        else:
            yield from _read_items(message, ids)


def _read_items(message: Message, ids: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Items that the model reads; `ids`: of the calls before."""
    if message["role"] == "user":
        yield {"type": "message", "role": "user", "content": text_of(message)}
    elif message.get("tool_call_id") in ids:
        call = ids[message["tool_call_id"]]
        yield {"type": "function_call_output", "call_id": call, "output": text_of(message)}


def _written_items(message: Message, ids: Mapping[str, str], number: int) -> Iterator[dict[str, Any]]:
    text, reasoning = shown(message)
    calls = [Call(ids[call["id"]], **call["function"]) for call in message.get("tool_calls") or ()]
    for item in responses.output(ModelAnswer(id=f"{number}", text=text, reasoning=reasoning, calls=calls)):
        if item["type"] == "reasoning":
            item["summary"] = [{"type": "summary_text", "text": reasoning}]
        yield item
