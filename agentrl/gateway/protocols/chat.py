"""OpenAI's chat completions: POST /v1/chat/completions."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from agentrl.core.json_text import to_json
from agentrl.gateway.answer_format import read_format
from agentrl.gateway.conversation import Conversation, optional
from agentrl.gateway.protocols import faults, reading
from agentrl.gateway.request import Body, ModelAnswer, TurnRequest
from agentrl.http.refusals import Refused
from agentrl.trajectory.message import Message

STATUS = faults.STATUS
HISTORY = "messages"
KEEP_ALIVE = b": the model thinks\n\n"
THOUGHTS = ("reasoning_content", "reasoning")
ROLES = {role: role for role in ("system", "user", "assistant", "tool")} | {"developer": "system", "function": "tool"}


def read(body: Body) -> TurnRequest:
    """Raises Refused."""
    if reading.field(body, "n", int, 1) != 1:
        raise Refused("n: only 1 is served; send the request several times")
    if body.get("functions"):
        raise Refused("functions: not served; send them as tools")
    reading.field(body, "stream_options", dict)
    tools = [_tool(item, at) for at, item in reading.items(body, "tools")]
    return TurnRequest(
        Conversation([], reading.required(body, "messages"), _messages),
        max_tokens=reading.positive(body, "max_completion_tokens", "max_tokens"),
        stop=reading.stops(body.get("stop"), "stop"),
        format=read_format(body.get("response_format"), "response_format"),
        one_call=body.get("parallel_tool_calls") is False,
        **reading.shared_fields(body, tools, body.get("tool_choice"), logprobs=bool(body.get("logprobs"))),
    )


def whole(answer: ModelAnswer) -> dict[str, Any]:
    """The answer as one JSON object."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or (None if answer.calls else "")}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = list(_calls(answer))
    choice = {"index": 0, "message": message, **_end(answer), "finish_reason": answer.finish}
    return {**_head(answer, "chat.completion"), "choices": [choice], "usage": _usage(answer), **answer.prompt_ids}


def events(answer: ModelAnswer) -> Iterator[bytes]:
    """The answer as server-sent events."""
    yield _chunk(answer, {"role": "assistant", "content": ""}, answer.prompt_ids, **_end(answer))
    if answer.reasoning:
        yield _chunk(answer, {"reasoning_content": answer.reasoning})
    if answer.text:
        yield _chunk(answer, {"content": answer.text})
    for i, call in enumerate(_calls(answer)):
        yield _chunk(answer, {"tool_calls": [{**call, "index": i}]})
    yield _chunk(answer, {}, finish_reason=answer.finish)
    if (answer.body.get("stream_options") or {}).get("include_usage"):
        yield reading.event({**_head(answer, "chat.completion.chunk"), "choices": [], "usage": _usage(answer)})
    yield b"data: [DONE]\n\n"


def error(error: Refused) -> dict[str, Any]:
    """The error as one JSON object."""
    kind = "server_error" if STATUS[error.fault] >= 500 else "invalid_request_error"
    return {"error": {"message": str(error), "type": kind, "param": None, "code": faults.FAULTS[error.fault].code}}


def error_event(refused: Refused) -> bytes:
    """The error within a stream."""
    return reading.event(error(refused))


def _messages(given: Sequence[Any], first: int) -> list[Message]:
    return [_message(item, at) for at, item in reading.items({"messages": given}, "messages", first=first)]


def _message(item: Mapping[str, Any], at: str) -> Message:
    role = ROLES.get(str(item.get("role")))
    if role is None:
        raise Refused(f"{at}role: {item.get('role')!r} is unknown; use one of {', '.join(ROLES)}")
    message: Message = {"role": role, "content": reading.content(item.get("content"), part, at)}
    if role == "assistant":
        calls = [_call(call, path) for path, call in reading.items(item, "tool_calls", at)]
        thought = next((item[name] for name in THOUGHTS if isinstance(item.get(name), str)), "")
        return message | optional(tool_calls=calls, thought=thought)
    if role == "tool":
        message["tool_call_id"] = reading.field(item, "tool_call_id", str, "", at)
    name = reading.field(item, "name", str, "", at)
    return message | ({"name": name} if name and role == "tool" else {})


def part(part: Body, at: str) -> dict[str, Any]:
    """A part of content. Raises Refused."""
    kind = part.get("type")
    if kind in ("text", "refusal", "input_text", "output_text"):
        return {"type": "text", "text": reading.field(part, "refusal" if kind == "refusal" else "text", str, "", at)}
    if kind == "image_url":
        image = part.get("image_url")
        return reading.picture(image.get("url") if isinstance(image, Mapping) else image, at)
    raise Refused(f"{at}type: {kind!r} is not served; use text or image_url")


def _call(call: Mapping[str, Any], at: str) -> dict[str, Any]:
    written = reading.field(call, "function", dict, {}, at)
    name = reading.field(written, "name", str, "", f"{at}function.")
    return reading.tool_call(reading.field(call, "id", str, "", at), name, written.get("arguments"))


def _tool(item: Mapping[str, Any], at: str) -> dict[str, Any]:
    about = item.get("function")
    if (kind := item.get("type", "function")) != "function" or not isinstance(about, Mapping):
        raise Refused(f"{at}type: a tool of type {kind!r} is not served; use function")
    return reading.function(about, "parameters", f"{at}function.")


def _calls(answer: ModelAnswer) -> Iterator[dict[str, Any]]:
    for call in answer.calls:
        written = {"name": call.name, "arguments": to_json(call.arguments)}
        yield {"id": call.id, "type": "function", "function": written}


def _end(answer: ModelAnswer) -> dict[str, Any]:
    return {"logprobs": {"content": answer.tokens, "refusal": None} if answer.tokens else None, **answer.ids}


def _usage(answer: ModelAnswer) -> dict[str, Any]:
    size = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens}
    cached = {"cached_tokens": answer.cached_tokens}
    return {**size, "total_tokens": sum(size.values()), "prompt_tokens_details": cached}


def _head(answer: ModelAnswer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": answer.created, "model": answer.model}


def _chunk(answer: ModelAnswer, delta: dict[str, Any], about: Body = MappingProxyType({}), **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": None, **fields}
    return reading.event({**_head(answer, "chat.completion.chunk"), "choices": [choice], **about})
