"""Google's generateContent: POST /v1beta/models/MODEL:generateContent, :streamGenerateContent and :countTokens.

A request brings its whole history. Its fields have the names `topP` or `top_p`. A stream is one event, because clients
keep each event as a message.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.core.json_text import encoded, to_json
from agentrl.gateway.answer_format import AnswerFormat, read_format
from agentrl.gateway.conversation import Conversation, turns_joined
from agentrl.gateway.protocols import anthropic, faults, reading
from agentrl.gateway.request import Body, ModelAnswer, TurnRequest
from agentrl.http.refusals import Refused
from agentrl.trajectory.message import Message

STATUS = faults.STATUS
HISTORY = "contents"
KEEP_ALIVE = b"\n\n"
"""No comment: clients read none."""
METHODS = ("generateContent", "streamGenerateContent", "countTokens")
ROLES = {"user": "user", "function": "user", "model": "assistant", "system": "system"}
MODES = {"ANY": "required", "NONE": "none"}
FORMATS = {"text/plain": "text", "application/json": "json_object"}


def address(model: str, method: str) -> str:
    """The path of a request."""
    return f"/models/{model}:{method}{'?alt=sse' if method == METHODS[1] else ''}"


def read(body: Body) -> TurnRequest:
    """`model` and `method` are those of its address. Raises Refused."""
    given = _object(_snake(body), "generate_content_request") | _snake(body)
    given = _object(given, "generation_config") | given
    method, (tools, others) = given.get("method", ""), _tools(given)
    if method not in ("", *METHODS):
        raise Refused(f"{method} is not served; use {', '.join(METHODS)}", "missing")
    if reading.field(given, "candidate_count", int, 1) != 1 or given.get("cached_content"):
        raise Refused("candidateCount above 1 and cachedContent are not served; send whole requests, several times")
    head = [{**_object(given, "system_instruction"), "role": "system"}] if given.get("system_instruction") else []
    logprobs, top = bool(given.get("response_logprobs")), given.pop("logprobs", None)
    shared = {**given, "stream": method == METHODS[1], "top_logprobs": top}
    return TurnRequest(
        Conversation(_read_items(head, 0), reading.required(given, HISTORY), _read_items),
        max_tokens=reading.positive(given, "max_output_tokens"),
        stop=reading.stops(given.get("stop_sequences"), "stopSequences"),
        format=_format(given),
        **reading.shared_fields(shared, tools, _choice(given), others, logprobs=logprobs),
    )


def whole(answer: ModelAnswer) -> dict[str, Any]:
    """The answer as one JSON object."""
    reason = "MAX_TOKENS" if answer.finish == "length" else "STOP"
    candidate = {"index": 0, "content": {"role": "model", "parts": list(_parts(answer))}, "finishReason": reason}
    if answer.tokens:
        top = [{"candidates": list(map(_token, token["top_logprobs"]))} for token in answer.tokens]
        candidate["logprobsResult"] = {"chosenCandidates": list(map(_token, answer.tokens)), "topCandidates": top}
    known, size = answer.cached_tokens, (answer.prompt_tokens, answer.completion_tokens)
    usage = dict(zip(("promptTokenCount", "candidatesTokenCount"), size, strict=True))
    usage |= {"cachedContentTokenCount": known, "totalTokenCount": sum(size)}
    about = {"modelVersion": answer.model, "responseId": answer.id}
    return {"candidates": [candidate], "usageMetadata": usage, **about, **answer.prompt_ids, **answer.ids}


def events(answer: ModelAnswer) -> Iterator[bytes]:
    """The answer as a server-sent event."""
    yield reading.event(whole(answer))


def error(error: Refused) -> dict[str, Any]:
    """The error as one JSON object."""
    longest = f"({error.tokens}) exceeds the maximum number of tokens allowed ({error.limit})."
    text = f"The input token count {longest}" if error.limit else str(error)
    return {"error": {"code": STATUS[error.fault], "message": text, "status": faults.FAULTS[error.fault].name}}


def error_event(refused: Refused) -> bytes:
    """The error within a stream: JSON alone, in which clients look for it."""
    return encoded(error(refused)) + b"\n"


def _snake(body: Body) -> dict[str, Any]:
    """The fields by their names with underscores, which other protocols have too."""
    return {re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", name): value for name, value in body.items()}


def _object(body: Body, name: str, at: str = "") -> dict[str, Any]:
    return _snake(reading.field(body, name, dict, {}, at))


def _items(body: Body, name: str, at: str = "", first: int = 0) -> list[tuple[str, dict[str, Any]]]:
    return [(path, _snake(item)) for path, item in reading.items(body, name, at, first)]


def _read_items(given: Sequence[Any], first: int) -> list[Message]:
    found = [(at, _message(item, at)) for at, item in _items({HISTORY: given}, HISTORY, first=first)]
    return turns_joined([message for at, item in found for message in anthropic.messages(item, at)])


def _message(item: Body, at: str) -> dict[str, Any]:
    """A message in Anthropic's form, which has parts of the same kinds. Raises Refused."""
    role = str(item.get("role") or "user")
    if role not in ROLES:
        raise Refused(f"{at}role: {role!r} is unknown; use user or model")
    return {"role": ROLES[role], "content": [_block(part, path) for path, part in _items(item, "parts", at)]}


def _block(part: Body, at: str) -> dict[str, Any]:
    if "function_call" in part:
        call = _object(part, "function_call", at)
        return {"type": "tool_use", "id": call.get("id"), "name": call.get("name"), "input": call.get("args")}
    if "function_response" in part:
        return _result(_object(part, "function_response", at), at)
    if "inline_data" in part:
        image = _object(part, "inline_data", at)
        data = str(image.get("data")).translate({ord("-"): "+", ord("_"): "/"})  # clients use either alphabet
        return {"type": "image", "source": {"media_type": image.get("mime_type"), "data": data}}
    if others := part.keys() - {"text", "thought", "thought_signature", "video_metadata"}:
        raise Refused(f"{at}{min(others)}: not served; use text, inlineData, functionCall or functionResponse")
    kind = "thinking" if part.get("thought") else "text"
    return {"type": kind, kind: part.get("text")}


def _result(result: Body, at: str) -> dict[str, Any]:
    given = _object(result, "response", at)
    output = given["output"] if given.keys() == {"output"} else result.get("response")
    text = {"type": "text", "text": output if isinstance(output, str) else to_json(output)}
    parts = [text, *(_block(part, path) for path, part in _items(result, "parts", at))]
    return {"type": "tool_result", "tool_use_id": result.get("id"), "name": result.get("name"), "content": parts}


def _tools(body: Body) -> tuple[list[dict[str, Any]], list[str]]:
    """Functions, and the names of tools that run at Google."""
    tools, others = [], []
    for at, item in _items(body, "tools"):
        others += [name for name in item if name != "function_declarations"]
        for path, function in _items(item, "function_declarations", at):
            schema = function.get("parameters_json_schema") or _schema(function.get("parameters"))
            tools.append(reading.function({**function, "parameters": schema}, "parameters", path))
    return tools, others


def _schema(given: Any) -> Any:
    """A schema with the types and null of JSON Schema."""
    if isinstance(given, list):
        return list(map(_schema, given))
    if not isinstance(given, Mapping):
        return given
    schema: dict[str, Any] = {name: _schema(value) for name, value in given.items()}
    if isinstance(kind := schema.get("type"), str):
        schema["type"] = [kind.lower(), "null"] if schema.pop("nullable", False) is True else kind.lower()
    return schema


def _choice(body: Body) -> Any:
    calling = _object(_object(body, "tool_config"), "function_calling_config")
    mode, names = MODES.get(str(calling.get("mode")), "auto"), calling.get("allowed_function_names")
    if not isinstance(names, list) or not names or mode == "none":
        return mode
    return {"type": "allowed_tools", "mode": mode, "tools": [{"name": name} for name in names]}


def _format(body: Body) -> AnswerFormat | None:
    kind = reading.field(body, "response_mime_type", str, "text/plain")
    schema = body.get("response_json_schema") or _schema(body.get("response_schema"))
    given = {"type": FORMATS.get(kind, kind)}
    return read_format({"type": "json_schema", "schema": schema} if schema else given, "responseMimeType")


def _parts(answer: ModelAnswer) -> Iterator[dict[str, Any]]:
    if answer.reasoning and _object(answer.body, "thinking_config").get("include_thoughts"):
        yield {"text": answer.reasoning, "thought": True}
    if answer.text or not answer.calls:
        yield {"text": answer.text}
    for call in answer.calls:
        yield {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}}


def _token(token: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": token["token"], "tokenId": token["token_id"], "logProbability": token["logprob"]}
