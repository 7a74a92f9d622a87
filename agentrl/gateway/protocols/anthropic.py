"""Anthropic's messages: POST /v1/messages and /v1/messages/count_tokens.

A request brings its whole history; within a thread it brings the id of the answer that it follows.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.core.json_text import to_json
from agentrl.gateway.answer_format import AnswerFormat, read_format
from agentrl.gateway.conversation import Conversation, optional, turns_joined
from agentrl.gateway.protocols import faults, reading
from agentrl.gateway.request import Body, ModelAnswer, TurnRequest
from agentrl.http.refusals import Refused
from agentrl.trajectory.message import Message, system_message

STATUS = faults.STATUS | {"lost": 404, "overloaded": 529}
HISTORY = "messages"
KEEP_ALIVE = reading.event({"type": "ping"}, "ping")
BILLING_HEADER = "x-anthropic-billing-header:"
"""A line that Claude Code puts before its system prompt, other in each request: meant for the service alone."""
DETAILS = {"lost": {"error_code": "thread_not_found"}}
"""At which clients send the whole history again, by fault."""
PROVIDER_TOOLS = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "advisor_")
"""Beginnings of the types of tools that run at Anthropic."""
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def read(body: Body) -> TurnRequest:
    """Raises Refused."""
    choice = reading.field(body, "tool_choice", dict, {})
    system, (tools, others) = _text(body.get("system") or "", "system"), _tools(body)
    previous = _previous(body)
    reading.field(body, "thinking", dict)
    return TurnRequest(
        Conversation(system_message(system), reading.required(body, "messages"), _read_items),
        previous=previous,
        same_tools=bool(previous),
        max_tokens=reading.positive(body, "max_tokens"),
        stop=reading.stops(body.get("stop_sequences"), "stop_sequences"),
        format=_format(body),
        one_call=choice.get("disable_parallel_tool_use") is True,
        **reading.shared_fields(body, tools, choice, others),
    )


def _previous(body: Body) -> str:
    """Id of the answer that the request follows in its thread; empty where it brings its history. Raises Refused."""
    thread = reading.field(body, "thread", dict, {})
    previous: str = reading.field(thread, "previous_message_id", str, "", "thread.")
    if thread.get("type") == "continue" and not previous:
        raise Refused("thread.previous_message_id is missing")
    return previous.removeprefix("msg_")


def _format(body: Body) -> AnswerFormat | None:
    """The answer's format, from either field: clients use both. Raises Refused."""
    within = reading.field(body, "output_config", dict, {}).get("format")
    return read_format(within or body.get("output_format"), "output_config.format")


def whole(answer: ModelAnswer) -> dict[str, Any]:
    """The answer as one JSON object."""
    return {**_head(answer), "content": list(_blocks(answer)), **_end(answer), "usage": _usage(answer)}


def events(answer: ModelAnswer) -> Iterator[bytes]:
    """The answer as server-sent events."""
    start = {**_head(answer), "content": [], "stop_reason": None, "stop_sequence": None}
    usage = {**_usage(answer), "output_tokens": 1}
    yield _event("message_start", message={**start, "usage": usage})
    for i, block in enumerate(_blocks(answer)):
        empty, deltas = _streamed(block)
        yield _event("content_block_start", index=i, content_block=empty)
        for delta in deltas:
            yield _event("content_block_delta", index=i, delta=delta)
        yield _event("content_block_stop", index=i)
    yield _event("message_delta", delta=_end(answer), usage=_usage(answer))
    yield _event("message_stop")


def error(error: Refused) -> dict[str, Any]:
    """The error as one JSON object."""
    text = f"prompt is too long: {error.tokens} tokens > {error.limit} maximum" if error.limit else str(error)
    about = {"details": DETAILS[error.fault]} if error.fault in DETAILS else {}
    return {"type": "error", "error": {"type": faults.FAULTS[error.fault].kind, "message": text, **about}}


def error_event(refused: Refused) -> bytes:
    """The error within a stream."""
    return reading.event(error(refused), "error")


def _text(content: Any, name: str) -> str:
    if isinstance(content, str):
        return content
    texts = [_line(item, at) for at, item in reading.items({name: content}, name)]
    return "\n".join(text for text in texts if not text.startswith(BILLING_HEADER))


def _line(block: Mapping[str, Any], at: str) -> str:
    if block.get("type", "text") != "text":
        raise Refused(f"{at}type: {block['type']!r} is not served here; use text")
    return str(reading.field(block, "text", str, "", at))


def _read_items(given: Sequence[Any], first: int) -> list[Message]:
    found = reading.items({"messages": given}, "messages", first=first)
    return turns_joined([message for at, item in found for message in messages(item, at)])


def messages(item: Body, at: str) -> Iterator[Message]:
    """A message; a user's with results of tools becomes one for each of them and one for the rest. Raises Refused."""
    role, content = item.get("role"), item.get("content")
    if role == "system":
        yield {"role": "system", "content": _text(content or "", f"{at}content")}
        return
    if role not in ("user", "assistant"):
        raise Refused(f"{at}role: {role!r} is unknown; use user or assistant")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    blocks = reading.items({"content": content}, "content", at)
    if role == "assistant":
        yield _assistant(blocks)
        return
    results = [(path, block) for path, block in blocks if block.get("type") == "tool_result"]
    for path, block in results:
        name, id = str(block.get("name") or ""), str(block.get("tool_use_id") or "")
        about = {"role": "tool", "tool_call_id": id} | optional(name=name)
        yield {**about, "content": reading.content(block.get("content"), _part, path)}
    rest = [_part(block, path) for path, block in blocks if block.get("type") != "tool_result"]
    if rest or not results:
        yield {"role": "user", "content": reading.joined(rest)}


def _assistant(blocks: list[tuple[str, Mapping[str, Any]]]) -> Message:
    texts = [reading.field(block, "text", str, "", at) for at, block in blocks if block.get("type") == "text"]
    uses = [block for _, block in blocks if block.get("type") == "tool_use"]
    calls = [reading.tool_call(str(u.get("id") or ""), str(u.get("name") or ""), u.get("input")) for u in uses]
    thoughts = [str(block.get("thinking") or "") for _, block in blocks if block.get("type") == "thinking"]
    return {"role": "assistant", "content": "\n".join(texts)} | optional(tool_calls=calls, thought="\n".join(thoughts))


def _part(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    kind, source = block.get("type"), block.get("source") or {}
    if kind == "text":
        return {"type": "text", "text": reading.field(block, "text", str, "", at)}
    if kind == "image" and isinstance(source, Mapping):
        data = f"data:{source.get('media_type')};base64,{source.get('data')}"
        return reading.picture(source.get("url") or data, at)
    raise Refused(f"{at}type: {kind!r} is not served; use text, image or tool_result")


def _tools(body: Body) -> tuple[list[dict[str, Any]], list[str]]:
    """Tools of the client's own, and the names of those that run at Anthropic, which are left out. Raises Refused."""
    tools, others = [], []
    for at, item in reading.items(body, "tools"):
        kind = reading.field(item, "type", str, "custom", at)
        if kind.startswith(PROVIDER_TOOLS):
            others.append(kind)
        elif kind != "custom" and "input_schema" not in item:
            raise Refused(f"{at}type: the schema of {kind!r} is not known here; send the tool with its input_schema")
        else:
            tools.append(reading.function(item, "input_schema", at))
    return tools, others


def _blocks(answer: ModelAnswer) -> Iterator[dict[str, Any]]:
    if answer.reasoning and (answer.body.get("thinking") or {}).get("type") in ("enabled", "adaptive"):
        yield {"type": "thinking", "thinking": answer.reasoning, "signature": "agentrl"}
    if answer.text or not answer.calls:
        yield {"type": "text", "text": answer.text}
    for call in answer.calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}


def _streamed(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it starts, and the deltas that fill it."""
    kind = block["type"]
    if kind == "tool_use":
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": to_json(block["input"])}]
    empty = {name: "" for name in block if name != "type"}
    signed = [{"type": "signature_delta", "signature": block["signature"]}] if "signature" in block else []
    return {**block, **empty}, [{"type": f"{kind}_delta", kind: block[kind]}, *signed]


def _end(answer: ModelAnswer) -> dict[str, Any]:
    reason = "stop_sequence" if answer.stop else REASONS[answer.finish]
    return {"stop_reason": reason, "stop_sequence": answer.stop}


def _usage(answer: ModelAnswer) -> dict[str, int]:
    cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": answer.cached_tokens}
    new = answer.prompt_tokens - answer.cached_tokens
    return {"input_tokens": new, **cache, "output_tokens": answer.completion_tokens}


def _head(answer: ModelAnswer) -> dict[str, Any]:
    about = {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "model": answer.model}
    return {**about, **answer.prompt_ids, **answer.ids}


def _event(kind: str, **data: Any) -> bytes:
    return reading.event({"type": kind, **data}, kind)
