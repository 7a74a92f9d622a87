"""Google's generateContent: POST /v1beta/models/MODEL:generateContent, :streamGenerateContent and :countTokens.

A request brings its whole history. Its fields have the names `topP` or `top_p`. A stream is one event, because clients
keep each event as a message.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.core.json_text import encoded, to_json
from agentrl.gateway.answer_format import AnswerFormat, read_format
from agentrl.gateway.conversation import Conversation, optional, turns_joined
from agentrl.gateway.protocols import chat, reading
from agentrl.gateway.request import AnswerToken, Body, ModelAnswer, TurnRequest
from agentrl.http.refusals import Refused
from agentrl.trajectory.message import Message

STATUS = chat.STATUS
CODES = {
    "key": "UNAUTHENTICATED",
    "missing": "NOT_FOUND",
    "busy": "RESOURCE_EXHAUSTED",
    "slow": "DEADLINE_EXCEEDED",
} | {
    "overloaded": "UNAVAILABLE",
    "internal": "INTERNAL",
}
HISTORY = "contents"
KEEP_ALIVE = b"\n\n"
"""No comment: clients read none."""
METHODS = ("generateContent", "streamGenerateContent", "countTokens")
MODES = {"ANY": "required", "NONE": "none"}
LIMITS = re.compile("(min|max)[A-Z]")
"""Begins keywords of a schema whose numbers may be text."""


def read(body: Body) -> TurnRequest:
    """`model` and `method` are those of its address. Raises Refused."""
    given = _camel(body) | _object(_camel(body), "generateContentRequest")
    given |= _object(given, "generationConfig")
    if (method := given.get("method")) not in (None, *METHODS):
        raise Refused(f"{method} is not served; use {', '.join(METHODS)}", "missing")
    if reading.field(given, "candidateCount", int, 1) != 1:
        raise Refused("candidateCount: only 1 is served; send the request several times")
    if given.get("cachedContent"):
        raise Refused("cachedContent: not served; send the contents")
    tools, others = _tools(given)
    shared = {"top_p": given.get("topP"), "top_logprobs": given.pop("logprobs", None)}
    shared["stream"] = method == METHODS[1]
    return TurnRequest(
        Conversation(_system(given), reading.required(given, HISTORY), _read_items),
        max_tokens=reading.positive(given, "maxOutputTokens"),
        stop=reading.stops(given.get("stopSequences"), "stopSequences"),
        format=_format(given),
        **reading.shared_fields(
            {**given, **shared}, tools, _choice(given), others, logprobs=bool(given.get("responseLogprobs"))
        ),
    )


def whole(answer: ModelAnswer) -> dict[str, Any]:
    """The answer as one JSON object."""
    reason = "MAX_TOKENS" if answer.finish == "length" else "STOP"
    content = {"role": "model", "parts": list(_parts(answer))}
    candidate: dict[str, Any] = {"index": 0, "content": content, "finishReason": reason}
    if answer.tokens:
        top = [{"candidates": list(map(_token, token.top))} for token in answer.tokens]
        candidate["logprobsResult"] = {"chosenCandidates": list(map(_token, answer.tokens)), "topCandidates": top}
        candidate["avgLogprobs"] = sum(token.logprob for token in answer.tokens) / len(answer.tokens)
    about = {"modelVersion": answer.model, "responseId": answer.id, **answer.token_ids}
    return {"candidates": [candidate], "usageMetadata": _usage(answer), **about}


def events(answer: ModelAnswer) -> Iterator[bytes]:
    """The answer as a server-sent event."""
    yield reading.event(whole(answer))


def error(error: Refused) -> dict[str, Any]:
    """The error as one JSON object."""
    limit = f"exceeds the maximum number of tokens allowed ({error.limit})."
    text = f"The input token count ({error.tokens}) {limit}" if error.limit else str(error)
    status = CODES.get(error.fault, "INVALID_ARGUMENT")
    return {"error": {"code": STATUS[error.fault], "message": text, "status": status}}


def error_event(refused: Refused) -> bytes:
    """The error within a stream: JSON alone, in which clients look for it."""
    return encoded(error(refused)) + b"\n"


def _camel(body: Body) -> dict[str, Any]:
    """The fields by the names that the protocol prefers."""
    return {re.sub("_([a-z])", lambda match: match[1].upper(), name): value for name, value in body.items()}


def _object(body: Body, name: str, at: str = "") -> dict[str, Any]:
    return _camel(reading.field(body, name, dict, {}, at))


def _items(body: Body, name: str, at: str = "", first: int = 0) -> list[tuple[str, dict[str, Any]]]:
    return [(path, _camel(item)) for path, item in reading.items(body, name, at, first)]


def _system(body: Body) -> list[Message]:
    parts = [_part(part, at) for at, part in _items(_object(body, "systemInstruction"), "parts", "systemInstruction.")]
    return [{"role": "system", "content": reading.joined(parts)}] if parts else []


def _read_items(given: Sequence[Any], first: int) -> list[Message]:
    found = _items({HISTORY: given}, HISTORY, first=first)
    return turns_joined([message for at, item in found for message in _messages(item, at)], "")


def _messages(item: Body, at: str) -> Iterator[Message]:
    """A message; a user's with results of functions becomes one for each of them and one for the rest."""
    role, parts = item.get("role") or "user", _items(item, "parts", at)
    if role not in ("user", "model", "function"):
        raise Refused(f"{at}role: {role!r} is unknown; use user or model")
    if role == "model":
        yield _said(parts)
        return
    results = [(path, _object(part, "functionResponse", path)) for path, part in parts if "functionResponse" in part]
    yield from (_result(result, path) for path, result in results)
    rest = [_part(part, path) for path, part in parts if "functionResponse" not in part]
    if rest or not results:
        yield {"role": "user", "content": reading.joined(rest)}


def _said(parts: Sequence[tuple[str, Body]]) -> Message:
    called = [_object(part, "functionCall", at) for at, part in parts if "functionCall" in part]
    calls = [reading.tool_call(str(c.get("id") or ""), str(c.get("name") or ""), c.get("args")) for c in called]
    texts = dict.fromkeys((False, True), "")
    for at, part in parts:
        texts[bool(part.get("thought"))] += reading.field(part, "text", str, "", at)
    return {"role": "assistant", "content": texts[False]} | optional(tool_calls=calls, thought=texts[True])


def _result(result: Body, at: str) -> Message:
    given = _object(result, "response", at)
    output = given["output"] if given.keys() == {"output"} else result.get("response")
    text = output if isinstance(output, str) else to_json(output)
    others = [_part(part, path) for path, part in _items(result, "parts", at)]
    about = {"tool_call_id": str(result.get("id") or ""), "name": str(result.get("name") or "")}
    return {"role": "tool", **about, "content": reading.joined([{"type": "text", "text": text}, *others])}


def _part(part: Body, at: str) -> dict[str, Any]:
    if "text" in part:
        return {"type": "text", "text": reading.field(part, "text", str, "", at)}
    if "inlineData" not in part:
        raise Refused(f"{at}{next(iter(part), 'text')}: not served; use text, inlineData or functionResponse")
    image = _object(part, "inlineData", at)
    data = str(image.get("data")).translate({ord("-"): "+", ord("_"): "/"})  # clients use either alphabet
    return reading.picture(f"data:{image.get('mimeType')};base64,{data}", f"{at}inlineData.")


def _tools(body: Body) -> tuple[list[dict[str, Any]], list[str]]:
    """Functions, and the names of tools that run at Google."""
    tools, others = [], []
    for at, item in _items(body, "tools"):
        others += [name for name in item if name != "functionDeclarations"]
        for path, function in _items(item, "functionDeclarations", at):
            schema = function.get("parametersJsonSchema") or _schema(function.get("parameters"))
            tools.append(reading.function({**function, "parameters": schema}, "parameters", path))
    return tools, others


def _schema(given: Any) -> Any:
    """A schema with the types, numbers and null of JSON Schema."""
    if isinstance(given, list):
        return list(map(_schema, given))
    if not isinstance(given, Mapping):
        return given
    schema = {name: _schema(value) for name, value in given.items()}
    if isinstance(kind := schema.get("type"), str):
        schema["type"] = [kind.lower(), "null"] if schema.pop("nullable", False) is True else kind.lower()
    return {n: int(v) if LIMITS.match(n) and isinstance(v, str) and v.isdigit() else v for n, v in schema.items()}


def _choice(body: Body) -> Any:
    calling = _object(_object(body, "toolConfig"), "functionCallingConfig")
    mode, names = MODES.get(str(calling.get("mode")), "auto"), calling.get("allowedFunctionNames")
    if not isinstance(names, list) or not names or mode == "none":
        return mode
    return {"type": "allowed_tools", "mode": mode, "tools": [{"name": name} for name in names]}


def _format(body: Body) -> AnswerFormat | None:
    schema = body.get("responseJsonSchema") or _schema(body.get("responseSchema"))
    kind = reading.field(body, "responseMimeType", str, "text/plain")
    if kind not in ("text/plain", "application/json"):
        raise Refused(f"responseMimeType: {kind!r} is not served; use text/plain or application/json")
    free = kind == "text/plain"
    named = {"type": "json_schema", "schema": schema} if schema else {"type": "text" if free else "json_object"}
    return read_format(named, "responseSchema")


def _parts(answer: ModelAnswer) -> Iterator[dict[str, Any]]:
    if answer.reasoning and _object(answer.body, "thinkingConfig").get("includeThoughts"):
        yield {"text": answer.reasoning, "thought": True}
    if answer.text or not answer.calls:
        yield {"text": answer.text}
    for call in answer.calls:
        yield {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}}


def _token(token: AnswerToken) -> dict[str, Any]:
    return {"token": token.text, "tokenId": token.id, "logProbability": token.logprob}


def _usage(answer: ModelAnswer) -> dict[str, int]:
    return {
        "promptTokenCount": answer.prompt_tokens,
        "cachedContentTokenCount": answer.cached_tokens,
        "candidatesTokenCount": answer.completion_tokens,
        "totalTokenCount": answer.prompt_tokens + answer.completion_tokens,
    }
