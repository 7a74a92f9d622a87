"""Actions out of the model's text, by a JSON schema or as calls of tools."""

import json
import re
from typing import Any, Protocol

from agentrl.core.errors import InfraError
from agentrl.core.json_schema import Outlines, WrongSchema, compiled
from agentrl.environments.answers import SHORT, field
from agentrl.environments.spaces import NUMBER

OBJECT = re.compile(r"\{.*\}", re.DOTALL)
TOOL = 'Call a tool with JSON alone: {"tool_name": "NAME", "arguments": {...}}. The tools:'


class Reader(Protocol):
    """Reads actions."""

    @property
    def hint(self) -> str:
        """The form of an action, for the model."""

    def read(self, text: str) -> dict[str, Any]:
        """The fields of the action in a text. Raises ValueError, worded for the model."""


class TextReader:
    """The one field of the action is the text itself."""

    def __init__(self, name: str) -> None:
        self.name, self.hint = name, ""

    def read(self, text: str) -> dict[str, Any]:
        """See Reader."""
        return {self.name: text.strip()}


class NumberReader:
    """The one field of the action is a number."""

    def __init__(self, name: str, *, whole: bool) -> None:
        self.name, self.whole = name, whole
        self.hint = f"Answer with {'a whole number' if whole else 'a number'}: {name}."

    def read(self, text: str) -> dict[str, Any]:
        """See Reader."""
        found = [number.removesuffix(".") for number in NUMBER.findall(text)]
        if len(found) != 1 or (self.whole and not found[0].lstrip("+-").isdigit()):
            raise ValueError(self.hint)
        return {self.name: int(found[0]) if self.whole else float(found[0])}


class ChoiceReader:
    """The one field of the action is one of several words."""

    def __init__(self, name: str, choices: list[Any]) -> None:
        self.name, self.choices = name, {str(choice): choice for choice in choices}
        self.hint = f"Answer with one of {', '.join(self.choices)}."

    def read(self, text: str) -> dict[str, Any]:
        """See Reader."""
        found = [word for word in self.choices if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE)]
        if len(found) != 1:
            raise ValueError(self.hint)
        return {self.name: self.choices[found[0]]}


class ObjectReader:
    """The action is an object of JSON in the text."""

    def __init__(self, fields: dict[str, dict[str, Any]]) -> None:
        written = (f"{json.dumps(name)}: {_type(each)}" for name, each in fields.items())
        self.hint = f"Answer with JSON: {{{', '.join(written)}}}"

    def read(self, text: str) -> dict[str, Any]:
        """See Reader."""
        return _object(text, self.hint)


class ToolReader:
    """The action is a call of one of the environment's tools."""

    def __init__(self, tools: list[dict[str, Any]]) -> None:
        self.names = [tool["name"] for tool in tools]
        self.hint = "\n".join([TOOL, *map(_described, tools)])

    def read(self, text: str) -> dict[str, Any]:
        """See Reader."""
        call = _object(text, 'write {"tool_name": "NAME", "arguments": {...}}')
        name, arguments = call.get("tool_name", call.get("name")), call.get("arguments", {})
        if name not in self.names:
            raise ValueError(f"there is no tool {name!r}: {', '.join(self.names)}")
        if not isinstance(arguments, dict):
            raise ValueError("the arguments are no JSON object")
        return {"type": "call_tool", "tool_name": name, "arguments": arguments}

    @staticmethod
    def result(fields: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """(the observation of a call without its wrapping, whether the call was wrong)."""
        if "error" in fields:
            error = fields["error"]
            return {"error": f"Error: {error.get('message', error) if isinstance(error, dict) else error}"}, True
        result = fields.get("result")
        if not isinstance(result, dict) or not isinstance(result.get("content"), list):
            return {name: value for name, value in fields.items() if name != "tool_name"}, False
        parts = [str(part["text"]) for part in result["content"] if isinstance(part, dict) and "text" in part]
        return {"result": "\n".join(parts)}, bool(result.get("is_error") or result.get("isError"))


def reader_of(schema: dict[str, Any]) -> Reader:
    """The reader of actions of a compiled schema."""
    fields, required = _fields(schema)
    fields.pop("metadata", None)
    needed = [name for name in required or fields if name in fields]
    if len(needed) != 1:
        return ObjectReader(fields)
    name, about = needed[0], fields[needed[0]]
    if "enum" in about:
        return ChoiceReader(name, about["enum"])
    if about.get("type") in ("integer", "number"):
        return NumberReader(name, whole=about["type"] == "integer")
    return TextReader(name) if about.get("type") == "string" else ObjectReader(fields)


def tools_of(listed: dict[str, Any], who: str) -> list[dict[str, Any]]:
    """The tools of an answer, each with a name and a usable schema. Raises InfraError."""
    tools = field(listed, "tools", list, who)
    for tool in tools:
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise InfraError(f"{who} lists a tool without a name: {str(tool)[:SHORT]}")
        try:
            compiled(field(tool, "input_schema", dict, who))
        except WrongSchema as error:
            raise InfraError(f"{who}: the schema of its tool {tool['name']} cannot be used: {error}") from error
    return list(tools)


def _fields(schema: Any) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Outlines of an object's fields, and the names of the required ones."""
    outlines = Outlines(schema)
    whole = outlines.of(schema)
    return {name: outlines.of(each) for name, each in whole.get("properties", {}).items()}, whole.get("required", [])


def _object(text: str, hint: str) -> dict[str, Any]:
    found = OBJECT.search(text)
    try:
        value = json.loads(found[0]) if found else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError(hint)
    return value


def _type(about: dict[str, Any]) -> str:
    """The values of a field in a few words."""
    if "enum" in about:
        return " or ".join(map(str, about["enum"]))
    kind = about.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _described(tool: dict[str, Any]) -> str:
    fields, _ = _fields(tool.get("input_schema") or {})
    written = ", ".join(f"{name}: {_type(about)}" for name, about in fields.items())
    return f"- {tool['name']}({written}): {' '.join(str(tool.get('description') or '').split())}"
