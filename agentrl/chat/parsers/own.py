"""A parser of the user's own, named by its path: a function `(text, tools=None) -> Parsed`, or a class with such a
method `parse`. `stops`, where it has that, are further tokens at which its models stop.

What it returns is checked: what the model sampled ends no run, whatever the parser makes of it.
"""

import inspect
import logging
from collections.abc import Callable
from typing import Any

from agentrl.chat.parsers.calls import Malformed, broken, typed_call
from agentrl.chat.template import Tools
from agentrl.core.errors import UserError
from agentrl.core.plugins import load_attribute
from agentrl.core.user_errors import reported_as
from agentrl.trajectory.message import Call, Parsed

log = logging.getLogger(__name__)

Parser = Callable[..., Parsed]
KEY = "rollout.multi_turn.format"
METHOD = "parse"
EXPECTED = "your instructions say"


def named_by_path(format: str) -> bool:
    """Whether the name of a format is the path of a parser: file.py:Class or package.module.Class."""
    return ":" in format or "." in format


def load_parser(format: str) -> "OwnParser":
    """The parser that a path names. Raises UserError where there is none, or none that can parse."""
    path, _, name = format.rpartition(":") if ":" in format else format.rpartition(".")
    found = load_attribute(path, name, what=KEY)
    with reported_as(f"{KEY}: {format}"):
        made = found() if isinstance(found, type) else found
    parse = getattr(made, METHOD, None if isinstance(found, type) else made)
    if not callable(parse):
        raise UserError(f"{KEY}: {format} has no method {METHOD}: write `def {METHOD}(self, text, tools=None)`")
    _require_fit(format, parse)
    return OwnParser(format, parse, tuple(getattr(made, "stops", ())))


def _require_fit(format: str, parse: Callable[..., Any]) -> None:
    if inspect.iscoroutinefunction(parse):
        raise UserError(f"{KEY}: {format}: {METHOD} is async: write it as a plain function, it only reads text")
    try:
        inspect.signature(parse).bind("text", None)
    except TypeError as error:
        raise UserError(f"{KEY}: {format}: {METHOD} cannot be called with (text, tools): {error}") from error


class OwnParser:
    """The user's parser, as the built-in ones behave."""

    def __init__(self, format: str, parse: Callable[..., Any], stops: tuple[str, ...]) -> None:
        self.format = format
        self.parse = parse
        self.stops = stops
        self.warned = False

    def __call__(self, text: str, tools: Tools = None) -> Parsed:
        """See `agentrl.chat.parsers`. A turn that the parser fails on is one malformed call."""
        try:
            parsed = self.parse(text, tools)
            if not isinstance(parsed, Parsed):
                raise TypeError(f"it returned {type(parsed).__name__}, not agentrl.chat.Parsed")
            parsed.calls = [_checked(call, text, i) for i, call in enumerate(parsed.calls)]
        except Exception as error:
            self._warn(error)
            return Parsed(text, [broken("the turn could not be read", text, 0, expected=EXPECTED)])
        return parsed

    def _warn(self, error: Exception) -> None:
        if not self.warned:
            log.warning("%s: %s failed on a turn: %s: %s", KEY, self.format, type(error).__name__, error)
        self.warned = True


def _checked(call: Call, text: str, index: int) -> Call:
    if call.error is not None:
        return call
    try:
        # The escape has the arguments checked in full: nobody knows what the parser made them from.
        return typed_call(call.name, call.arguments, f"{text}\\u", index, identity=call.id)
    except Malformed as error:
        return broken(str(error), text, index, expected=EXPECTED, name=call.name)
