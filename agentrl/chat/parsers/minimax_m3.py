"""MiniMax-M3: <invoke name="NAME"><KEY>value</KEY>...</invoke> within <tool_call>, each tag behind ]<]minimax[>[.

An argument may hold elements: an object, or a list of <item>. The tool's schema types what they hold.
"""

import re
from dataclasses import dataclass
from typing import Any

from agentrl.chat.parsers.blocks import Tags, parse_blocks
from agentrl.chat.parsers.calls import Malformed, match_at, naming, near, skip_space, stuck, typed_call
from agentrl.chat.parsers.literals import MAX_LITERALS
from agentrl.chat.parsers.values import Bare, parameters_of, settled
from agentrl.core.json_schema import Outlines
from agentrl.core.json_text import DEEPEST
from agentrl.core.points import tool_parser
from agentrl.trajectory.message import Call, Parsed, Tools

MARK = "]<]minimax[>["
ITEM = "item"
TAGS = Tags(
    (f"{MARK}<tool_call>",),
    f"{MARK}</tool_call>",
    f'{MARK}<tool_call>\\n{MARK}<invoke name="NAME">{MARK}<KEY>VALUE{MARK}</KEY>{MARK}</invoke>\\n{MARK}</tool_call>',
    signs=(f"{MARK}<invoke",),
    several=True,
)
_INVOKE = re.compile(rf'\s*+{re.escape(MARK)}<invoke name="([^"\n]{{1,256}}+)">')
_ELEMENT = re.compile(rf"{re.escape(MARK)}<([^</>\n]{{1,256}}+)>")
_END = f"{MARK}</invoke>"

Element = tuple[str, "str | list[Element]"]
"""Its name, and its text or the elements within it."""


@tool_parser("minimax_m3")
def parse(text: str, tools: Tools = None) -> Parsed:
    """Read a turn; `tools` tell numbers from text that looks like one, and lists from objects."""
    return parse_blocks(text, TAGS, lambda answer, body, index: _Elements(answer).call(body, index, tools))


@dataclass
class _Elements:
    text: str
    count: int = 0

    def call(self, at: int, index: int, tools: Tools) -> tuple[list[Call], int]:
        header = match_at(_INVOKE, self.text, at, stuck(self.text, at))
        with naming(header[1]):
            elements, end = self._within(header.end(), _END, 0)
            schema = parameters_of(header[1], tools)
            arguments = _object(elements, schema, Outlines(schema))
            if len(arguments) < len(elements):
                raise Malformed("an argument is there twice")
            return [typed_call(header[1], settled(arguments, header[1], tools), self.text[at:end], index)], end

    def _within(self, at: int, close: str, depth: int) -> tuple[list[Element], int]:
        """The elements up to `close`, and the position after it."""
        elements: list[Element] = []
        while not self.text.startswith(close, skip_space(self.text, at)):
            element, at = self._element(skip_space(self.text, at), depth)
            elements.append(element)
        return elements, skip_space(self.text, at) + len(close)

    def _element(self, at: int, depth: int) -> tuple[Element, int]:
        self.count += 1
        opening = _ELEMENT.match(self.text, at)
        if opening is None or depth > DEEPEST or self.count > MAX_LITERALS:
            raise Malformed(f"no element, or too many, {near(self.text, at)}")
        close = f"{MARK}</{opening[1]}>"
        following = self.text.find(MARK, opening.end())
        if following >= 0 and self.text.startswith(close, following):
            return (opening[1], self.text[opening.end() : following]), following + len(close)
        elements, end = self._within(opening.end(), close, depth + 1)
        return (opening[1], elements), end


def _object(elements: list[Element], schema: Any, outlines: Outlines) -> dict[str, Any]:
    fields = outlines.of(schema).get("properties", {})
    return {name: _value(inner, fields.get(name), outlines) for name, inner in elements}


def _value(inner: "str | list[Element]", schema: Any, outlines: Outlines) -> Any:
    kind = outlines.of(schema).get("type")
    if isinstance(inner, str):
        empty: Any = {"array": [], "object": {}}.get(str(kind))
        return Bare(inner) if empty is None or inner.strip() else empty
    if kind == "array" or (kind is None and all(name == ITEM for name, _ in inner)):
        return [_value(child, outlines.of(schema).get("items"), outlines) for _, child in inner]
    return _object(inner, schema, outlines)
