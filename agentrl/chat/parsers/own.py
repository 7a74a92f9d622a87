"""A parser of the user's own: a function `(text, tools=None) -> Parsed`, or a class with such a method `parse`.

`stops`, an attribute of it or a mark of its decorator, are further tokens at which its models stop. What it returns is
checked: what the model sampled ends no run, whatever the parser makes of it.
"""

import logging
from collections.abc import Callable
from typing import Any

from agentrl.chat.parsers.calls import Malformed, broken, typed_call
from agentrl.core.errors import reported_as
from agentrl.core.registry import Entry
from agentrl.trajectory.message import Call, Parsed, Tools

log = logging.getLogger(__name__)

EXPECTED = "your instructions say"


def own_parser(format: str, entry: Entry[Any], key: str) -> "OwnParser":
    """The parser that is registered, or found, as `format`. Raises UserError where it cannot be made."""
    with reported_as(f"{key}={format}"):
        parse = entry.value().parse if isinstance(entry.value, type) else entry.value
    return OwnParser(f"{key}={format}", parse)


class OwnParser:
    """The user's parser, as the built-in ones behave."""

    def __init__(self, where: str, parse: Callable[..., Any]) -> None:
        self.where = where
        self.parse = parse
        self.warned = False

    def __call__(self, text: str, tools: Tools = None) -> Parsed:
        """Read a turn. One that the parser fails on is one malformed call."""
        try:
            parsed = self.parse(text, tools)
            if not isinstance(parsed, Parsed):
                raise TypeError(f"it returned {type(parsed).__name__}, not agentrl.chat.Parsed")
            parsed.calls = [_checked(call, text, i) for i, call in enumerate(parsed.calls)]
        except Exception as error:
            if not self.warned:
                log.warning("%s failed on a turn: %s: %s", self.where, type(error).__name__, error)
            self.warned = True
            return Parsed(text, [broken("the turn could not be read", text, 0, expected=EXPECTED)])
        return parsed


def _checked(call: Call, text: str, index: int) -> Call:
    if call.error is not None:
        return call
    try:
        # The escape has the arguments checked in full: it is unknown what the parser made them from.
        return typed_call(call.name, call.arguments, f"{text}\\u", index, identity=call.id)
    except Malformed as error:
        return broken(str(error), text, index, expected=EXPECTED, name=call.name)
