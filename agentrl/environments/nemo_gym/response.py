"""A conversation as the answer of the Responses API that a resource server verifies.

Invariant: the id of each call is its own: the same text may be called twice.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.gateway.canonical import shown
from agentrl.gateway.protocols import responses
from agentrl.gateway.request import ModelAnswer
from agentrl.trajectory.message import Call, Message, text_of

Json = dict[str, Any]


def response_of(
    params: Mapping[str, Any], messages: Sequence[Message], *, full: bool, prompt: int = 0, sampled: int = 0
) -> Json:
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


def output_of(messages: Sequence[Message]) -> Iterator[Json]:
    """Items of messages. Answers to malformed calls, which are text of the model's, are left out."""
    ids: dict[str, str] = {}
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            ids = {call["id"]: f"call_{number}_{i}" for i, call in enumerate(message.get("tool_calls") or ())}
            yield from _written_items(message, ids, number)
        else:
            yield from _read_items(message, ids)


def _read_items(message: Message, ids: Mapping[str, str]) -> Iterator[Json]:
    """Items that the model reads; `ids`: of the calls before."""
    if message["role"] == "user":
        yield {"type": "message", "role": "user", "content": text_of(message)}
    elif message.get("tool_call_id") in ids:
        call = ids[message["tool_call_id"]]
        yield {"type": "function_call_output", "call_id": call, "output": text_of(message)}


def _written_items(message: Message, ids: Mapping[str, str], number: int) -> Iterator[Json]:
    text, reasoning = shown(message)
    calls = [Call(ids[call["id"]], **call["function"]) for call in message.get("tool_calls") or ()]
    for item in responses.output(ModelAnswer(id=f"{number}", text=text, reasoning=reasoning, calls=calls)):
        if item["type"] == "reasoning":
            item["summary"] = [{"type": "summary_text", "text": reasoning}]
        yield item
