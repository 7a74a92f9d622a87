"""Reads fields of a request, and writes what the protocols share."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.core.json_text import encoded, to_json
from agentrl.gateway.request import Body
from agentrl.http.refusals import Refused

MOST_STOPS, LONGEST_STOPS = 64, 4096
LONGEST_NAME = 64
HOTTEST = 100
MOST_LOGPROBS = 20
CALL: dict[str, Any] = {"must_call": ""}
CHOICES: dict[str, dict[str, Any]] = {"auto": {}, "none": {"tools": []}, "any": CALL, "required": CALL}
READ = {
    *("model", "messages", "input", "system", "instructions", "thread", "previous_response_id", "tools", "tool_choice"),
    *("parallel_tool_calls", "stream", "stream_options", "temperature", "top_p", "n", "max_tokens", "stop", "include"),
    *("max_completion_tokens", "max_output_tokens", "stop_sequences", "logprobs", "response_format", "text"),
    *("output_config", "output_format", "thinking", "top_logprobs", "return_token_ids", "contents", "method"),
    *("system_instruction", "tool_config", "generation_config", "generate_content_request", "thinking_config"),
    *("response_mime_type", "response_schema", "response_json_schema", "response_logprobs", "candidate_count"),
}
"""Fields that the protocols read."""
UNASKING = {
    *("user", "metadata", "client_metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("prompt_cache_retention", "truncation", "context_management", "safety_settings", "labels"),
}
"""Fields that ask nothing of the model."""
NAMES: dict[Any, str] = {str: "a string", int: "an integer", float: "a number", bool: "true or false", list: "a list"}


def field(body: Body, name: str, kind: type, default: Any = None, where: str = "") -> Any:
    """The value of a field, or the default where it is absent or null. Raises Refused for another type."""
    value = body.get(name)
    if value is None:
        return default
    kinds = (int, float) if kind is float else kind
    if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
        raise Refused(f"{where}{name}: expected {NAMES.get(kind, 'an object')}, got {_short(value)}")
    return value


def items(body: Body, name: str, where: str = "", first: int = 0) -> list[tuple[str, Mapping[str, Any]]]:
    """The objects of a list, each with its path; the list begins at position `first`. Raises Refused."""
    found = field(body, name, list, [], where)
    named = [(f"{where}{name}[{i}].", item) for i, item in enumerate(found, first)]
    for path, item in named:
        if not isinstance(item, Mapping):
            raise Refused(f"{path[:-1]}: expected an object, got {_short(item)}")
    return named


def required(body: Body, name: str) -> list[Any]:
    """A list with something in it. Raises Refused."""
    found: list[Any] = field(body, name, list, [])
    if not found:
        raise Refused(f"{name}: give at least one")
    return found


def stops(value: Any, name: str) -> tuple[str, ...]:
    """Stop strings. Raises Refused."""
    given = [value] if isinstance(value, str) else value or []
    if not isinstance(given, list) or not all(isinstance(stop, str) for stop in given):
        raise Refused(f"{name}: expected a string or a list of strings, got {_short(value)}")
    if len(given) > MOST_STOPS or sum(map(len, given)) > LONGEST_STOPS:
        raise Refused(f"{name}: give {MOST_STOPS} strings at most, of {LONGEST_STOPS} characters together")
    return tuple(filter(None, given))


def _choice(choice: Any) -> dict[str, Any]:
    """The fields of a `TurnRequest` that a tool choice sets. Raises Refused."""
    given = choice if isinstance(choice, Mapping) else {"type": choice}
    kind, name = str(given.get("type") or "auto"), _name(given)
    if kind == "allowed_tools":
        about = field(given, kind, dict, given, "tool_choice.")
        names, mode = [_name(tool) for _, tool in items(about, "tools", "tool_choice.")], about.get("mode", "auto")
        only = {"name": names[0]} if mode == "required" and len(names) == 1 else mode
        return {**_choice(only), "allowed": frozenset(names)}
    if name or kind in CHOICES:
        return {"must_call": name} if name else CHOICES[kind]
    raise Refused(f"tool_choice: {_short(choice)} is not served; use auto, none, required (any) or the name of a tool")


def _name(tool: Body) -> str:
    """The name of a function, which chat completions nest; empty where it has none."""
    about = tool.get("function", tool)
    name = about.get("name") if isinstance(about, Mapping) else None
    return name if isinstance(name, str) else ""


def positive(body: Body, *names: str) -> int | None:
    """The first of the fields that is given. Raises Refused for less than 1."""
    for name in names:
        value: int | None = field(body, name, int)
        if value is not None and value < 1:
            raise Refused(f"{name}: give 1 or more, not {_short(value)}")
        if value is not None:
            return value
    return None


def shared_fields(
    body: Body, tools: list[dict[str, Any]], choice: Any, others: Sequence[str] = (), *, logprobs: bool = False
) -> dict[str, Any]:
    """The fields of a `TurnRequest` that all protocols spell alike; `others`: tools that run at the provider, which are
    left out unless there are no more. Raises Refused."""
    if others and not tools:
        raise Refused(f"tools: {others[0]} runs at the provider, and is not served; give the agent a tool that it runs")
    temperature, top_p = field(body, "temperature", float), field(body, "top_p", float)
    if temperature is not None and not 0 <= temperature <= HOTTEST:
        raise Refused(f"temperature: give a number from 0 to {HOTTEST}, not {_short(temperature)}")
    if top_p is not None and not 0 < top_p <= 1:
        raise Refused(f"top_p: give a number above 0, up to 1, not {_short(top_p)}")
    if not 0 <= (top := field(body, "top_logprobs", int, 0)) <= MOST_LOGPROBS:
        raise Refused(f"top_logprobs: give a number from 0 to {MOST_LOGPROBS}, not {_short(top)}")
    unmet = [f"tool {kind}" for kind in others]
    unmet += [name[:LONGEST_NAME] for name, value in body.items() if value and name not in READ | UNASKING]
    about = {"model": field(body, "model", str, "policy"), "tools": tools, "unmet": tuple(unmet), "body": body}
    wanted = {"token_ids": field(body, "return_token_ids", bool, False), "stream": field(body, "stream", bool, False)}
    sampling = {"temperature": temperature, "top_p": top_p, "logprobs": top if logprobs else None}
    return {**about, **wanted, **sampling, **_choice(choice)}


def function(tool: Body, parameters: str, where: str) -> dict[str, Any]:
    """The schema of a tool, as chat templates take it; `parameters`: the field with its JSON schema. Raises Refused."""
    name, description = field(tool, "name", str, "", where), field(tool, "description", str, "", where)
    schema = field(tool, parameters, dict, {}, where)
    if not name:
        raise Refused(f"{where}name is missing")
    about = {"description": description} if description else {}
    written = {"name": name, **about, "parameters": schema or {"type": "object", "properties": {}}}
    return {"type": "function", "function": written}


def tool_call(id: str, name: str, arguments: Any) -> dict[str, Any]:
    """An entry of an assistant message's `tool_calls`, its arguments as an object where they are JSON."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": parsed(arguments)}}


def parsed(arguments: Any) -> Any:
    """Arguments as an object where they are the JSON of one."""
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def picture(url: Any, at: str) -> dict[str, Any]:
    """The part of an image. Raises Refused for one that would have to be fetched, or read from this machine's disk."""
    if isinstance(url, str) and url.startswith("data:image/"):
        return {"type": "image", "image": url}
    raise Refused(f"{at[:-1]}: send the image itself, as data:image/png;base64,...: no address is fetched")


def content(given: Any, part: Callable[[Body, str], dict[str, Any]], at: str) -> str | list[dict[str, Any]]:
    """Content that is a string, or a list of parts that `part` reads. Raises Refused."""
    if given is None or isinstance(given, str):
        return given or ""
    return joined([part(item, path) for path, item in items({"content": given}, "content", at)])


def joined(parts: Sequence[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Content as one string where it is text alone."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return list(parts)


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (head, encoded(data))


def _short(value: Any) -> str:
    text = to_json(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
