"""Reads the JSON of requests. A body that goes on after the one before costs only what it adds.

Agents send their whole history at each turn: to parse it each time costs more with every turn.

Invariant: the value is that of parsing the whole text.
"""

import json
from dataclasses import dataclass
from typing import Any

import orjson

from agentrl.core.prefixes import common_length
from agentrl.gateway.request import Body, Refused


@dataclass(frozen=True)
class LastBody:
    """A body that was read: its text, its value, and where the list of its history ends in the text."""

    text: bytes
    value: Body
    end: int | None = None
    """Position of the bracket that closes the list; None: not known."""


class BodyReader:
    """Reads the bodies of one rollout's requests, one after the other."""

    def __init__(self) -> None:
        self._last: dict[str, LastBody] = {}
        """By the field that holds the history."""

    def read(self, text: bytes, history: str) -> Body:
        """The object; items of its list `history` that the last body had as well are the same objects.

        Raises Refused.
        """
        last = self._last.get(history)
        read = (_continued(last, text, history) if last else None) or LastBody(text, parse(text))
        self._last[history] = read
        return read.value


def parse(text: bytes) -> Body:
    """The JSON object of a request. Raises Refused."""
    value = _loads(text)
    if not isinstance(value, dict):
        raise Refused("the body is no JSON object")
    return value


def _continued(last: LastBody, text: bytes, history: str) -> LastBody | None:
    """The body as the last one with further items at the end of its history; None where it is another one."""
    end = _end(last, text, history) if last.end is None else last.end
    if end is None or text[: end + 1] != last.text[:end] + b"," or not text.endswith(last.text[end:]):
        return None
    close = len(text) - len(last.text) + end
    try:
        # Whole items: so brackets and braces after them close what they closed in the last body.
        items = orjson.loads(b"[%b]" % text[end + 1 : close])
    except ValueError:
        return None
    return LastBody(text, {**last.value, history: [*last.value[history], *items]}, close) if items else None


def _end(last: LastBody, text: bytes, history: str) -> int | None:
    """Where the history of the last body ends, if another text goes on there."""
    at, fields = common_length(last.text, text), list(last.value)
    if last.text[at : at + 1] != b"]" or not last.value.get(history):
        return None
    try:
        rest = orjson.loads(b'{"%b":[%b' % (history.encode(), last.text[at:]))
    except ValueError:
        return None
    # The fields after this bracket are those after the history: so it closes the history.
    after = {name: last.value[name] for name in fields[fields.index(history) + 1 :]}
    return at if list(rest) == [history, *after] and rest == {history: [], **after} else None


def _loads(text: bytes) -> Any:
    """JSON, also with what orjson refuses: NaN, half a surrogate pair. Raises Refused."""
    try:
        return orjson.loads(text)
    except ValueError:
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is no JSON: {error}") from error
