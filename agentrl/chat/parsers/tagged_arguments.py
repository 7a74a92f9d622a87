"""Calls that spell each argument out between tags: what qwen3_coder, glm, minimax_m2, dsml and others share."""

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentrl.chat.parsers.blocks import Tags, parse_blocks
from agentrl.chat.parsers.calls import MAX_ARGUMENTS, Malformed, match_at, naming, stuck, typed_call
from agentrl.chat.parsers.values import Bare, settled
from agentrl.trajectory.message import Call, Parsed, Tools

NAME = r"[^<>\n]{1,256}+"
"""A tool's or an argument's name: bounded, and never given back, so that no pattern backtracks."""

ReadValue = Callable[[re.Match[str], str], dict[str, Any]]
"""(match of the argument's opening, value as written) -> the arguments it stands for, mostly one; raises Malformed."""


def by_schema(argument: re.Match[str], value: str) -> dict[str, Any]:
    """Text that the tool's schema types."""
    return {argument[1].strip(): Bare(value)}


def without_newlines(argument: re.Match[str], value: str) -> dict[str, Any]:
    """Text that the tool's schema types, for a format that puts each value on separate lines."""
    return by_schema(argument, value.removeprefix("\n").removesuffix("\n"))


@dataclass(frozen=True)
class Grammar:
    """How a format writes a block of calls."""

    tags: Tags
    header: re.Pattern[str]
    """A call's beginning; group 1 is the tool's name."""
    argument: re.Pattern[str]
    """An argument's beginning; group 1 is its key."""
    value_end: re.Pattern[str]
    """The tag that closes a value, with something known behind it: values may speak of tags themselves."""
    footer: re.Pattern[str]
    """A call's end."""
    read_value: ReadValue = by_schema


def parse_spelled(text: str, grammar: Grammar, tools: Tools) -> Parsed:
    """All calls of a turn, in order; text between the blocks becomes content."""
    return parse_blocks(text, grammar.tags, _Spelled(grammar, tools).read)


class _Spelled:
    """Reads the calls of one turn."""

    def __init__(self, grammar: Grammar, tools: Tools) -> None:
        self.grammar, self.tools = grammar, tools
        self.ends: list[tuple[int, int]] | None = None
        """Where values may end: the closing tags, from the first to the last. Found once, at the first call."""

    def read(self, text: str, body: int, index: int) -> tuple[list[Call], int]:
        """The call at `body`, and its end. Raises Malformed."""
        if self.ends is None:
            self.ends = [found.span() for found in self.grammar.value_end.finditer(text, body)]
        header = match_at(self.grammar.header, text, body, f"no tool name after {self.grammar.tags.open[0]}")
        name = header[1].strip()
        with naming(name):
            written, end = self._arguments(text, header.end(), self.ends)
            return [typed_call(name, settled(written, name, self.tools), text[body:end], index)], end

    def _arguments(self, text: str, at: int, ends: list[tuple[int, int]]) -> tuple[dict[str, Any], int]:
        arguments: dict[str, Any] = {}
        while (argument := self.grammar.argument.match(text, at)) is not None:
            found = bisect_left(ends, (argument.end(), 0))
            if found == len(ends):
                break
            value_end, at = ends[found]
            read = self.grammar.read_value(argument, text[argument.end() : value_end])
            self._require_new(read, arguments)
            arguments |= read
        footer = match_at(self.grammar.footer, text, at, stuck(text, at))
        return arguments, footer.end()

    @staticmethod
    def _require_new(read: dict[str, Any], arguments: dict[str, Any]) -> None:
        twice = next((key for key in read if key in arguments), None)
        if twice is not None:
            raise Malformed(f"the argument {twice!r} is there twice")
        if len(arguments) + len(read) > MAX_ARGUMENTS:
            raise Malformed(f"it has more than {MAX_ARGUMENTS} arguments")
