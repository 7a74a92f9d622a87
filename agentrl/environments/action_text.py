"""Observations as text, and actions out of text: by Gymnasium's spaces, by JSON schemas, or as calls of tools."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentrl.core.errors import InfraError, plural, shortened
from agentrl.core.foreign import read_object
from agentrl.core.json_schema import Outlines
from agentrl.environments.answers import SHOWN_CHARACTERS, checked_schema, field

Json = dict[str, Any]
OBJECT = re.compile(r"\{.*\}", re.DOTALL)
DIGITS = 4
SHOWN_ACTION = 80
"""Characters of an invalid action that its message repeats."""
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
COLOUR = re.compile(r"\x1b\[[\d;]*m")
COLOURED = re.compile(r"\x1b\[[\d;]+m(.*?)\x1b\[0?m", re.DOTALL)


@dataclass(frozen=True)
class ActionReader:
    """Reads actions."""

    hint: str
    """The form of an action, for the model."""
    read: Callable[[str], Json]
    """The fields of the action in a text; raises ValueError, worded for the model."""


def _number_reader(name: str, *, whole: bool) -> ActionReader:
    hint = f"Answer with {'a whole number' if whole else 'a number'}: {name}."

    def read(text: str) -> Json:
        found = [number.removesuffix(".") for number in NUMBER.findall(text)]
        if len(found) != 1 or (whole and not found[0].lstrip("+-").isdigit()):
            raise ValueError(hint)
        return {name: int(found[0]) if whole else float(found[0])}

    return ActionReader(hint, read)


def _choice_reader(name: str, values: list[Any]) -> ActionReader:
    choices = list(map(str, values))
    hint = f"Answer with one of {', '.join(choices)}."
    return ActionReader(hint, lambda text: {name: values[_chosen(text, choices)]})


def _object_reader(outlines: dict[str, Json]) -> ActionReader:
    written = (f"{json.dumps(name)}: {_type(each)}" for name, each in outlines.items())
    hint = f"Answer with JSON: {{{', '.join(written)}}}"
    return ActionReader(hint, lambda text: _object(text, hint))


def read_call(text: str) -> Json:
    """The action of an OpenEnv server that a call of a tool is. Raises ValueError."""
    call = _object(text, "Call a tool.")
    name = call.get("tool_name", call.get("name"))
    return {"type": "call_tool", "tool_name": name, "arguments": call.get("arguments", {})}


def tool_result(fields: Json) -> tuple[Json, bool]:
    """(the observation of a tool call without its wrapping, whether the call was wrong)."""
    if "error" in fields:
        error = fields["error"]
        return {"error": f"Error: {error.get('message', error) if isinstance(error, dict) else error}"}, True
    result = fields.get("result")
    if not isinstance(result, dict) or not isinstance(result.get("content"), list):
        return {name: value for name, value in fields.items() if name != "tool_name"}, False
    parts = [str(part["text"]) for part in result["content"] if isinstance(part, dict) and "text" in part]
    return {"result": "\n".join(parts)}, bool(result.get("is_error") or result.get("isError"))


def reader_of(schema: Json) -> ActionReader:
    """The reader of actions of a compiled schema."""
    fields, required = _fields(schema)
    fields.pop("metadata", None)
    needed = [name for name in required or fields if name in fields]
    if len(needed) != 1:
        return _object_reader(fields)
    name, about = needed[0], fields[needed[0]]
    if "enum" in about:
        return _choice_reader(name, about["enum"])
    if about.get("type") in ("integer", "number"):
        return _number_reader(name, whole=about["type"] == "integer")
    if about.get("type") == "string":
        return ActionReader("", lambda text: {name: text.strip()})
    return _object_reader(fields)


def tools_of(listed: Any, who: str) -> list[Json]:
    """OpenAI's schemas of tools that are written in that form, in OpenEnv's, or are objects with an `openai_schema`.

    Raises InfraError.
    """
    schemas = []
    for tool in listed:
        about = getattr(tool, "openai_schema", tool)
        about = about.get("function", about) if isinstance(about, dict) else {}
        if not isinstance(about.get("name"), str):
            raise InfraError(f"{who} lists a tool without a name: {str(tool)[:SHOWN_CHARACTERS]}")
        written = field(about, "parameters" if "parameters" in about else "input_schema", dict, who)
        parameters = checked_schema({"type": "object", "properties": {}, **written}, f"{who}: its tool {about['name']}")
        shown = {"name": about["name"], "description": str(about.get("description") or ""), "parameters": parameters}
        schemas.append({"type": "function", "function": shown})
    return schemas


def _fields(schema: Any) -> tuple[dict[str, Json], list[str]]:
    """Outlines of an object's fields, and the names of the required ones."""
    outlines = Outlines(schema)
    whole = outlines.of(schema)
    return {name: outlines.of(each) for name, each in whole.get("properties", {}).items()}, whole.get("required", [])


def _object(text: str, hint: str) -> Json:
    found = OBJECT.search(text)
    if (value := read_object(found[0] if found else "")) is None:
        raise ValueError(hint)
    return value


def _type(about: Json) -> str:
    """The values of a field in a few words."""
    if "enum" in about:
        return " or ".join(map(str, about["enum"]))
    kind = about.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def text_of(value: Any) -> str:
    """An observation as text: text as it is, numbers with few digits, a line for each name of a Dict."""
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {text_of(each)}" for name, each in value.items())
    if isinstance(value, np.ndarray):
        return text_of(value.tolist())
    if isinstance(value, tuple | list):
        return ", ".join(f"[{text_of(each)}]" if isinstance(each, tuple | list) else text_of(each) for each in value)
    if isinstance(value, float | np.floating):
        return f"{float(value):.{DIGITS}g}"
    return str(value)


def uncoloured(text: str) -> str:
    """A drawing without colours: what was coloured is in square brackets, for it may be all that marks a place."""
    return COLOUR.sub("", COLOURED.sub(r"[\1]", text))


def choices_of(space: Any, names: Sequence[str] | None) -> list[str]:
    """The actions of a Discrete space; empty for another."""
    if type(space).__name__ != "Discrete":
        return []
    first, count = int(space.start), int(space.n)
    if names:
        return list(names[:count])
    return [str(first + i) for i in range(count)]


def parse(space: Any, text: str, names: Sequence[str] | None) -> Any:
    """The action of a space that a text names. Raises ValueError, worded for the model."""
    choices = choices_of(space, names)
    if choices:
        return int(space.start) + _chosen(text, choices)
    kind = type(space).__name__
    if kind not in ("Box", "MultiDiscrete", "MultiBinary"):
        if space is None or kind == "Text" or space.contains(text):
            return text
        raise TypeError(f"actions of {space} are not read from text: name a function in the entry's `action`")
    numbers = NUMBER.findall(text)
    size = int(np.prod(space.shape))
    if len(numbers) != size:
        raise ValueError(f"{shortened(text, SHOWN_ACTION)!r} has {plural(len(numbers), 'number')}; write {size}")
    value = np.array(list(map(float, numbers))).reshape(space.shape).astype(space.dtype)
    if not space.contains(value):
        raise ValueError(f"{shortened(text, SHOWN_ACTION)!r} is outside of {space}")
    return value


def _chosen(text: str, choices: Sequence[str]) -> int:
    """The only choice that a text is, or else names as a word. Raises ValueError."""
    plain = [choice.casefold() for choice in choices]
    said = text.strip().strip("[](){}<>\"'`.!* ").casefold()
    if said in plain:
        return plain.index(said)
    named = [i for i, choice in enumerate(plain) if re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", text.casefold())]
    if len(named) == 1:
        return named[0]
    trouble = "names several actions" if named else "is none"
    raise ValueError(f"{shortened(text, SHOWN_ACTION)!r} {trouble}; write one of {', '.join(choices)}")
