"""Reads the JSON of requests. A body that goes on after the one before costs only what it adds.

Agents send their whole history at each turn: to parse it each time costs more with every turn.

Invariant: the value is that of parsing the whole text.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from agentrl.core.foreign import require_parts
from agentrl.core.prefixes import common_length
from agentrl.gateway.request import Body
from agentrl.http.refusals import Refused

KEPT_BYTES = 2 * 2**20
"""Bytes of a body up to which it is kept for the next one: thousands of sessions may keep one each."""


@dataclass(frozen=True)
class LastBody:
    """A body that was read: its value, and its text in two parts."""

    begun: bytes
    """Up to the bracket that closes the list of its history; all of the text where that is not known."""
    value: Body
    rest: bytes = b""
    """From that bracket on."""


class JsonReader:
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
        if len(text) <= KEPT_BYTES:
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
    begun, rest = (last.begun, last.rest) if last.rest else _parts(last, text, history)
    end, close = len(begun), len(text) - len(rest)
    # startswith compares without a copy: the text is long.
    if not rest or text[end : end + 1] != b"," or not text.startswith(begun) or not text.endswith(rest):
        return None
    try:
        # Whole items: so brackets and braces after them close what they closed in the last body.
        items = orjson.loads(b"[%b]" % text[end + 1 : close])
    except ValueError:
        return None
    value = {**last.value, history: [*last.value[history], *items]}
    return LastBody(text[:close], value, text[close:]) if items else None


def _parts(last: LastBody, text: bytes, history: str) -> tuple[bytes, bytes]:
    """The last body up to the end of its history, and from there on, if another text goes on there; else the second
    is empty."""
    at, fields = common_length(last.begun, text), list(last.value)
    begun, rest = last.begun[:at], last.begun[at:]
    if not rest.startswith(b"]") or not last.value.get(history):
        return begun, b""
    try:
        closed = orjson.loads(b'{"%b":[%b' % (history.encode(), rest))
    except ValueError:
        return begun, b""
    # The fields after this bracket are those after the history: so it closes the history.
    after = {name: last.value[name] for name in fields[fields.index(history) + 1 :]}
    same = list(closed) == [history, *after] and closed == {history: [], **after}
    return begun, rest if same else b""


def _loads(text: bytes) -> Any:
    """JSON, also with what orjson refuses: NaN, half a surrogate pair. Raises Refused."""
    try:
        require_parts(text)
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(text)
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is no JSON: {error}") from error
