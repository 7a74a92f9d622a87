"""Pythonic calls: [f(a=1), g(b="x")], alone (Llama 3.2/4) or between tags (Llama 4, LFM2)."""

import re
import warnings
from typing import Any

from agentrl.chat.parsers.calls import (
    MAX_ARGUMENTS,
    MAX_CALLS,
    Malformed,
    broken,
    match_at,
    naming,
    near,
    skip_space,
    typed_call,
)
from agentrl.chat.parsers.literals import Values
from agentrl.chat.parsers.reasoning import calls_in_thinking, split_thinking
from agentrl.chat.parsers.values import settled
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Call, Parsed, Tools

EXPECTED = "[name(key=value, ...), ...] with Python literals as values"
TAG_PAIRS = (("<|python_start|>", "<|python_end|>"), ("<|tool_call_start|>", "<|tool_call_end|>"))
_OPENINGS = tuple(start for start, _ in TAG_PAIRS)
_LOOKS_LIKE_CALL = re.compile(r"\s*+\[\s*+[A-Za-z_][\w.]*+\s*+\(")
_BUILTIN = re.compile(r"\s*+[A-Za-z_]\w*+\.call\(")
_NAME = re.compile(r"\s*+([A-Za-z_][\w.\-]{0,255}+)\s*+\(")
_KEY = re.compile(r"\s*+([A-Za-z_]\w{0,255}+)\s*+=(?!=)")


@tool_parser("pythonic", stops=("<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>"))
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn; `tools` tell numbers from text, where a template quotes them all."""
    parsed, answer = split_thinking(text)
    for start, end in TAG_PAIRS:
        before, tag, rest = answer.partition(start)
        if tag:
            return _parse_between(parsed, before, rest, end, tools)
    parsed.content = answer
    if _LOOKS_LIKE_CALL.match(answer):
        parsed.content = ""
        parsed.calls = _read_list(answer, tools)
    parsed.calls += calls_in_thinking(parsed, answer, _OPENINGS, EXPECTED)
    return parsed


def parse_builtin(text: str) -> Call | None:
    """Llama 3's built-in form, NAME.call(key="value"); None when `text` is not of that form."""
    if not _BUILTIN.match(text):
        return None
    call = _read_list(f"[{text.strip()}]", None)[0]
    call.name = call.name.removesuffix(".call")
    return call


def _parse_between(parsed: Parsed, before: str, rest: str, end: str, tools: Tools) -> Parsed:
    body, closed, after = rest.rpartition(end)
    if not closed:
        body, after = rest, ""
    parsed.content = "\n".join(piece for piece in (before.rstrip(), after.strip()) if piece)
    unclosed = f"{end} is missing at the end"
    parsed.calls = _read_list(body, tools) if closed else [broken(unclosed, body, 0, expected=EXPECTED)]
    return parsed


def _read_list(text: str, tools: Tools) -> list[Call]:
    with warnings.catch_warnings(action="ignore"):  # an odd escape in a model's string
        return _List(text, tools).read()


class _List:
    """The calls of one list, or one call without a list. Behind a call that cannot be read, nothing is."""

    def __init__(self, text: str, tools: Tools) -> None:
        self.text = text
        self.tools = tools
        self.values = Values(text)
        self.calls: list[Call] = []

    def read(self) -> list[Call]:
        """At least one call, malformed ones included."""
        try:
            at = self._read(skip_space(self.text, 0))
            if skip_space(self.text, at) < len(self.text):
                raise Malformed(f"unexpected text {near(self.text, skip_space(self.text, at))}")
        except Malformed as error:
            reason = f"invalid Python: {error}"
            self.calls.append(broken(reason, self.text, len(self.calls), expected=EXPECTED, name=error.name))
        return self.calls

    def _read(self, at: int) -> int:
        if not self.text.startswith("[", at):
            return self._call(at)
        at += 1
        while not self.text.startswith("]", skip_space(self.text, at)):
            at = self.values.comma(self._call(at), "]")
        if not self.calls:
            raise Malformed("the list of calls is empty")
        return skip_space(self.text, at) + 1

    def _call(self, at: int) -> int:
        header = match_at(_NAME, self.text, at, f"item {len(self.calls) + 1} of the list is not a call")
        if len(self.calls) == MAX_CALLS:
            raise Malformed(f"at most {MAX_CALLS} calls are read of one turn", header[1])
        with naming(header[1]):
            arguments, end = self._arguments(header.end())
            # Llama 4's template quotes each value: where the schema says that it is no text, it is read again.
            arguments = settled(arguments, header[1], self.tools, quoted=True)
            self.calls.append(typed_call(header[1], arguments, self.text[at:end], len(self.calls)))
        return end

    def _arguments(self, at: int) -> tuple[dict[str, Any], int]:
        arguments: dict[str, Any] = {}
        while not self.text.startswith(")", skip_space(self.text, at)):
            key = match_at(_KEY, self.text, at, f"every argument needs its name {near(self.text, at)}")
            if key[1] in arguments or len(arguments) == MAX_ARGUMENTS:
                raise Malformed(f"the argument {key[1]!r} is there twice, or one of more than {MAX_ARGUMENTS}")
            arguments[key[1]], at = self.values.read(key.end())
            at = self.values.comma(at, ")")
        return arguments, skip_space(self.text, at) + 1
