"""OpenAI's responses: POST /v1/responses. A request brings its whole history, or the id of the answer it follows.

A custom tool takes plain text: the policy sees a function with the one argument `input`.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from agentrl.core.json_text import to_json
from agentrl.gateway.answer_format import read_format
from agentrl.gateway.conversation import REFERENCE, THOUGHT, Conversation, turns_joined
from agentrl.gateway.protocols import chat, reading
from agentrl.gateway.request import Body, ModelAnswer, TurnRequest
from agentrl.http.refusals import Refused
from agentrl.trajectory.message import Message, system_message

STATUS, KEEP_ALIVE, error = chat.STATUS, chat.KEEP_ALIVE, chat.error
HISTORY = "input"
TEXT = "input"
REASONING = "rs"
"""Begins the id of a reasoning item."""
CUSTOM = {"type": "object", "properties": {TEXT: {"type": "string"}}, "required": [TEXT]}
DEFAULTS = {"metadata": {}, "tool_choice": "auto", "tools": [], "parallel_tool_calls": True}
EMPTY: dict[str, Any] = {"content": [], "arguments": "", "input": "", "status": "in_progress"}
"""Fields of an item that begins."""
ECHOED = ("instructions", *DEFAULTS, "temperature", "top_p", "reasoning", "previous_response_id")
"""Fields of the request that an answer repeats, and their values where they are absent."""


def read(body: Body) -> TurnRequest:
    """Raises Refused."""
    for name in ("conversation", "background", "prompt"):
        if body.get(name):
            raise Refused(f"{name}: not served; send the history as `input`, or previous_response_id")
    tools, others = _tools(body)
    logprobs = "message.output_text.logprobs" in reading.field(body, "include", list, [])
    return TurnRequest(
        Conversation(system_message(reading.field(body, "instructions", str)), _input(body), _read_items),
        previous=reading.field(body, "previous_response_id", str, "").removeprefix("resp_"),
        max_tokens=reading.positive(body, "max_output_tokens"),
        format=read_format(reading.field(body, "text", dict, {}).get("format"), "text.format"),
        one_call=body.get("parallel_tool_calls") is False,
        **reading.shared_fields(body, tools, body.get("tool_choice"), others, logprobs=logprobs),
    )


def whole(answer: ModelAnswer) -> dict[str, Any]:
    """The answer as one JSON object."""
    cut = answer.finish == "length"
    details = {"reason": "max_output_tokens"} if cut else None
    about = {"status": "incomplete" if cut else "completed", "incomplete_details": details, "usage": _usage(answer)}
    return {**_head(answer), **about, "output": list(output(answer)), **answer.prompt_ids, **answer.ids}


def events(answer: ModelAnswer) -> Iterator[bytes]:
    """The answer as server-sent events."""
    begun = {**_head(answer), "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    end = whole(answer)
    numbers = count()
    for kind, data in (
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
        *(step for i, item in enumerate(end["output"]) for step in _steps(i, item)),
        (f"response.{end['status']}", {"response": end}),
    ):
        yield reading.event({"type": kind, **data, "sequence_number": next(numbers)}, kind)


def error_event(refused: Refused) -> bytes:
    """The error within a stream."""
    about = error(refused)["error"]
    failed = {"type": "error", "code": about["code"], "message": about["message"], "param": None, "sequence_number": 0}
    return reading.event(failed, "error")


def _input(body: Body) -> list[Any]:
    given = body.get("input")
    return [{"role": "user", "content": given}] if isinstance(given, str) else reading.required(body, "input")


def _read_items(given: Sequence[Any], first: int) -> list[Message]:
    found = reading.items({"input": given}, "input", first=first)
    return turns_joined([message for at, item in found for message in _item(item, at)])


def _item(item: Mapping[str, Any], at: str) -> Iterator[Message]:
    match item.get("type", "message"):
        case "message":
            yield _message(item, at)
        case "function_call" | "custom_tool_call" as kind:
            given = item.get("arguments") if kind == "function_call" else {TEXT: str(item.get("input") or "")}
            name = _full(item.get("namespace"), str(item.get("name") or ""))
            call = reading.tool_call(str(item.get("call_id") or ""), name, given)
            yield {"role": "assistant", "content": "", "tool_calls": [call]}
        case "function_call_output" | "custom_tool_call_output":
            content = reading.content(item.get("output"), _part, f"{at}output.")
            yield {"role": "tool", "tool_call_id": str(item.get("call_id") or ""), "content": content}
        case "item_reference":
            kind, _, name = str(item.get("id") or "").partition("_")
            if kind != REASONING:
                yield {"role": "assistant", "content": "", REFERENCE: name}
        case "reasoning":
            texts = [str(part.get("text") or "") for _, part in reading.items(item, "content", at)]
            yield {"role": "assistant", THOUGHT: "\n".join(texts)}
        case "compaction":
            return
        case kind:
            raise Refused(f"{at}type: {kind!r} is not served; use message, function_call or function_call_output")


def _message(item: Mapping[str, Any], at: str) -> Message:
    role = chat.ROLES.get(str(item.get("role")))
    if role in (None, "tool"):
        raise Refused(f"{at}role: {item.get('role')!r} is unknown; use system, developer, user or assistant")
    return {"role": role, "content": reading.content(item.get("content"), _part, at)}


def _part(part: Body, at: str) -> dict[str, Any]:
    if part.get("type") == "input_image":
        return reading.picture(part.get("image_url"), at)
    return chat.part(part, at)


def _tools(body: Body) -> tuple[list[dict[str, Any]], list[str]]:
    """Functions, and the names of tools that run at OpenAI, which are left out."""
    tools, others = [], []
    for at, item in reading.items(body, "tools"):
        kind = item.get("type")
        if kind == "namespace":
            tools += [_within(item, tool, path) for path, tool in reading.items(item, "tools", at)]
        elif kind in ("function", "custom"):
            shown = {**item, "parameters": CUSTOM} if kind == "custom" else item
            tools.append(reading.function(shown, "parameters", at))
        else:
            others.append(str(kind))
    return tools, others


def _within(namespace: Mapping[str, Any], tool: Mapping[str, Any], at: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise Refused(f"{at}type: {tool.get('type')!r} is not served here; use function")
    schema = reading.function(tool, "parameters", at)
    schema["function"]["name"] = _full(namespace.get("name"), tool["name"])
    return schema


def _full(namespace: Any, name: str) -> str:
    """The name under which the policy knows a tool."""
    return f"{namespace}__{name}" if namespace else name


def _names(body: Body) -> dict[str, dict[str, str]]:
    """The tools of namespaces: the fields of their calls, by the names that the policy knows."""
    spaces = [tool for tool in body.get("tools") or () if tool.get("type") == "namespace"]
    return {
        _full(space.get("name"), tool["name"]): {"name": tool["name"], "namespace": str(space.get("name"))}
        for space in spaces
        for tool in space.get("tools") or ()
    }


def output(answer: ModelAnswer) -> Iterator[dict[str, Any]]:
    """The items of an answer."""
    if answer.reasoning:
        thought = [{"type": "reasoning_text", "text": answer.reasoning}]
        yield {"id": f"{REASONING}_{answer.id}", "type": "reasoning", "summary": [], "content": thought}
    if answer.text or not answer.calls:
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": answer.tokens}
        status = "incomplete" if answer.finish == "length" else "completed"
        about = {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "status": status}
        yield {**about, "content": [part]}
    named = _names(answer.body)
    custom = {tool.get("name") for tool in answer.body.get("tools") or () if tool.get("type") == "custom"}
    for call in answer.calls:
        about = {"status": "completed", "call_id": call.id, "name": call.name, **named.get(call.name, {})}
        if call.name in custom:
            text = str((call.arguments or {}).get(TEXT, ""))
            yield {"id": f"ctc_{call.id}", "type": "custom_tool_call", **about, "input": text}
        else:
            yield {"id": f"fc_{call.id}", "type": "function_call", **about, "arguments": to_json(call.arguments)}


def _steps(i: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    at = {"output_index": i, "item_id": item["id"]}
    begun = {**item, **{name: empty for name, empty in EMPTY.items() if name in item}}
    yield "response.output_item.added", {"output_index": i, "item": begun}
    yield from (_text_steps if "content" in item else _call_steps)(at, item)
    yield "response.output_item.done", {"output_index": i, "item": item}


def _call_steps(at: dict[str, Any], item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    name = "arguments" if "arguments" in item else "input"
    kind, named = f"response.{item['type']}_{name}", {"name": item["name"]} if name == "arguments" else {}
    yield f"{kind}.delta", {**at, "delta": item[name]}
    yield f"{kind}.done", {**at, **named, name: item[name]}


def _text_steps(at: dict[str, Any], item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    at, part = {**at, "content_index": 0}, item["content"][0]
    kind, text = f"response.{part['type']}", part["text"]
    logprobs = {name: part[name] for name in ("logprobs",) if name in part}
    none: dict[str, Any] = {name: [] for name in logprobs}
    yield "response.content_part.added", {**at, "part": {**part, "text": "", **none}}
    yield f"{kind}.delta", {**at, "delta": text, **none}
    yield f"{kind}.done", {**at, "text": text, **logprobs}
    yield "response.content_part.done", {**at, "part": part}


def _usage(answer: ModelAnswer) -> dict[str, Any]:
    size = {"input_tokens": answer.prompt_tokens, "output_tokens": answer.completion_tokens}
    cached = {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0}
    details = {"input_tokens_details": cached, "output_tokens_details": {"reasoning_tokens": 0}}
    return {**size, **details, "total_tokens": sum(size.values())}


def _head(answer: ModelAnswer) -> dict[str, Any]:
    echoed = {name: answer.body.get(name, DEFAULTS.get(name)) for name in ECHOED}
    about = {"id": f"resp_{answer.id}", "object": "response", "created_at": answer.created, "model": answer.model}
    return {**about, "error": None, **echoed}
