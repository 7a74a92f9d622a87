"""Values that a format writes without quotes, typed by the tool's schema.

Invariant: a value is what it spells, a number or a list; it stays text where that breaks the tool's schema less.
"""

import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.chat.parsers.calls import Malformed, read_value, skip_space
from agentrl.chat.parsers.literals import Values
from agentrl.core.json_schema import SECONDS, Schema, Unchecked, WrongSchema, compiled, leaves
from agentrl.trajectory.message import Tools

MAX_RETRIED_VALUES = 32
"""Values of a call whose other reading is tried."""

Path = tuple[str | int, ...]


class Bare(str):
    """A value as it is written, which may be text or what it spells."""


def settled(arguments: dict[str, Any], name: str, tools: Tools, *, quoted: bool = False) -> dict[str, Any]:
    """The arguments of a call with each bare value read. `quoted`: a string is text unless the schema refuses it."""
    written = dict(_bare((), arguments, str if quoted else Bare))
    spelled = {path: _spelled(text) for path, text in written.items()}
    first, second = (written, spelled) if quoted else (spelled, written)
    read: dict[str, Any] = _with(arguments, first)
    doubtful = {path: second[path] for path, value in spelled.items() if not isinstance(value, str)}
    parameters = parameters_of(name, tools) if doubtful else {}
    return _reread(read, doubtful, compiled(parameters)) if parameters else read


def _reread(arguments: dict[str, Any], others: Mapping[Path, Any], schema: Schema) -> dict[str, Any]:
    """The arguments with each of `others` in its place that makes fewer mistakes."""
    until = time.thread_time() + SECONDS
    try:
        wrong = [tuple(error.absolute_path) for error in leaves(schema.errors(arguments))]
        for path in sorted(others, key=lambda path: path not in wrong)[: MAX_RETRIED_VALUES if wrong else 0]:
            trial = _with(arguments, {path: others[path]})
            found = [tuple(error.absolute_path) for error in leaves(schema.errors(trial))]
            if len(found) < len(wrong):
                arguments, wrong = trial, found
            if not wrong or time.thread_time() > until:
                break
    except Unchecked:
        pass
    return arguments


def _bare(path: Path, value: Any, kind: type[str]) -> Iterator[tuple[Path, str]]:
    if isinstance(value, kind):
        yield path, str(value)
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _bare((*path, key), inner, kind)


def _with(value: Any, new: Mapping[Path, Any], path: Path = ()) -> Any:
    """A copy with new values at their places."""
    if path in new:
        return new[path]
    if isinstance(value, dict):
        return {key: _with(inner, new, (*path, key)) for key, inner in value.items()}
    return [_with(inner, new, (*path, i)) for i, inner in enumerate(value)] if isinstance(value, list) else value


def _spelled(value: str) -> Any:
    """The JSON or the Python literal that a text is; text otherwise."""
    try:
        converted = read_value(value)
    except Malformed:
        return _literal(value)
    return value if isinstance(converted, str) else converted


def _literal(value: str) -> Any:
    """A list or an object as Python prints it, which some templates do; all else is text."""
    start = skip_space(value, 0)
    if value[start : start + 1] not in ("[", "{"):
        return value
    try:
        with warnings.catch_warnings(action="ignore"):  # an odd escape in a model's string
            read, end = Values(value).read(start)
    except Malformed:
        return value
    return read if skip_space(value, end) == len(value) else value


def parameters_of(name: str, tools: Tools) -> dict[str, Any]:
    """The schema of a tool's arguments; {} where there is none, or a wrong one."""
    for tool in tools or ():
        function = tool.get("function", tool)
        if function.get("name") == name:
            return _usable(function.get("parameters"))
    return {}


def _usable(schema: Any) -> dict[str, Any]:
    try:
        compiled(schema)
    except WrongSchema:
        return {}
    return schema if isinstance(schema, dict) else {}
