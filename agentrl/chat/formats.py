"""Detects a template's tool-call format: renders calls and reads them back.

A format fits where it reads a plain call of the template's own exactly. Of several that fit, the one that reads most of
the further calls (all JSON types, two calls in a turn, text before a call) comes first; among equals, the order of
`PARSERS` decides. The same renders show which token ends a turn that calls tools.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.chat.template import USER, Template, TemplateRefusal
from agentrl.core.points import PARSERS
from agentrl.core.prefixes import common_length
from agentrl.trajectory.message import Call, Message, as_tool_call

Parser = Callable[..., Any]
Named = tuple[str, dict[str, Any]]
"""Name and arguments of a call."""

FALLBACK = "hermes"
"""Where the template shows no calls, or none that any format reads."""
PLAIN: list[Named] = [("look_up", {"city": "Paris"})]
FURTHER: tuple[tuple[str, list[Named]], ...] = (
    ("", [("look_up", {"city": 'a "b"\n{c} <d> é', "days": 3, "share": 1.5, "exact": True})]),
    ("", [("look_up", {"city": "Rome", "names": ["a", "b"], "more": {"deep": [1, 2]}})]),
    ("", [("look_up", {"city": "Paris"}), ("look_up", {"city": "Rome"})]),
    ("Let me see.", PLAIN),
)
TYPES = {
    "city": {"type": "string", "description": "x"},
    "days": {"type": "integer", "description": "x"},
    "share": {"type": "number", "description": "x"},
    "exact": {"type": "boolean", "description": "x"},
    "names": {"type": "array", "items": {"type": "string"}, "description": "x"},
    "more": {"type": "object", "properties": {}, "description": "x"},
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "x",
        "parameters": {"type": "object", "properties": TYPES, "required": ["city"]},
    },
}


@dataclass(frozen=True)
class Written:
    """A turn as the template writes it, in each spelling of the calls' ids that it takes."""

    calls: list[Named]
    texts: tuple[str, ...]
    """From the end of the generation prompt on, including the turn's end."""
    variants: tuple[str, ...]
    """Each text, with and without what ends it."""

    def read_by(self, parser: Parser) -> str | None:
        """The text that the parser reads back exactly, with or without what ends it; None: none of them."""
        return next((text for text in self.variants if reads(parser, text, self.calls)), None)


def readers(template: Template, further: Sequence[tuple[str, Parser]] = ()) -> list[str]:
    """Names of the formats that read the template's own calls, the best first; `further` ones besides PARSERS."""
    plain = written(template, PLAIN)
    fitting = {name: parser for name, parser in (*built_in_parsers(), *further) if plain.read_by(parser)}
    if len(set(fitting.values())) < 2:
        return list(fitting)
    others = [written(template, calls, content) for content, calls in FURTHER]

    def score(name: str) -> int:
        return sum(bool(other.read_by(fitting[name])) for other in others)

    return sorted(fitting, key=score, reverse=True)


def built_in_parsers() -> Iterator[tuple[str, Parser]]:
    """The formats that a template is tried against, by name."""
    for name in PARSERS.declared:
        yield name, PARSERS.built_in(name).value


def call_ends(template: Template, parser: Parser) -> list[str]:
    """Tokens that end a turn with calls: what the template writes after the last call.

    Where it writes nothing there, the header of the tool's result stops the model (GLM). Without a parser that reads
    the calls, their end is unknown.
    """
    plain, ends = written(template, PLAIN), _tokens(template)
    text = plain.read_by(parser)
    if text is None:
        return []
    shown = next(whole for whole in plain.texts if whole.startswith(text))
    last = max(ends, key=shown.rfind, default="")
    if last in shown and reads(parser, shown[: shown.rfind(last)], plain.calls):
        return [last]
    return _headers(template)


def reads(parser: Parser, text: str, calls: list[Named]) -> bool:
    """Whether the parser finds just these calls in a turn."""
    try:
        found = parser(text, [TOOL]).calls
    except Exception:  # a user's own
        return False
    return [(call.name, call.arguments) for call in found] == calls


def written(template: Template, calls: list[Named], content: str = "") -> Written:
    """The turns with which the template itself makes these calls; no text where it refuses or drops them."""
    texts = [_turn(template, _calling(calls, ids, content)) for ids in ("agentrl{i:02d}", "functions.{name}:{i}")]
    texts, ends = list(dict.fromkeys(filter(None, texts))), _tokens(template)
    variants = (variant for text in texts for variant in (text, *_without_end(text, ends)))
    return Written(calls, tuple(texts), tuple(variants))


def _turn(template: Template, turn: Message) -> str:
    """The turn's text after the generation prompt; both are compared as tokens, or `<` of two tags would be shared."""
    for tools in ([TOOL], None):
        try:
            before = template.render([USER], tools)
            prompt = template.render([USER], tools, generation=True).removeprefix(before)
            whole = template.render([USER, turn], tools)
        except TemplateRefusal:
            continue
        start = common_length(before, whole)
        ids, shared = template.encode(whole[start:]), template.encode(prompt)
        return template.decode(ids[common_length(ids, shared) :])
    return ""


def _calling(calls: list[Named], ids: str, content: str) -> Message:
    named = enumerate(calls)
    made = [as_tool_call(Call(ids.format(name=name, i=i), name, arguments)) for i, (name, arguments) in named]
    return {"role": "assistant", "content": content, "tool_calls": made}


def _headers(template: Template) -> list[str]:
    """The first token that a tool's result adds to a turn with calls."""
    turn = _calling(PLAIN, "agentrl{i:02d}", "")
    result = {"role": "tool", "name": "look_up", "tool_call_id": "agentrl00", "content": "x"}
    try:
        without = template.encode(template.render([USER, turn], [TOOL]))
        ids = template.encode(template.render([USER, turn, result], [TOOL]))
    except TemplateRefusal:
        return []
    added = template.added_tokens
    return [added[i] for i in ids[common_length(ids, without) :] if i in added][:1]


def _tokens(template: Template) -> list[str]:
    return [text for text in template.added_tokens.values() if text.strip()]


def _without_end(text: str, ends: Sequence[str]) -> list[str]:
    """The text without its last token of `ends`, and without its last two."""
    cut: list[str] = []
    for _ in range(2):
        at = max((text.rfind(end) for end in ends), default=-1)
        if at < 0:
            break
        text = text[:at]
        cut.append(text)
    return cut
