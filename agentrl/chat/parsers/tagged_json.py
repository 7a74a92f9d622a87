"""Calls as a JSON object between two tags: the loop that hermes, deepseek and kimi share."""

from collections.abc import Callable
from dataclasses import dataclass

from agentrl.chat.message import Call, Parsed
from agentrl.chat.parsers.calls import Malformed, broken, join_text
from agentrl.chat.parsers.thinking import split_thinking

ReadBody = Callable[[str, int, int], tuple[Call, int]]
"""(text, position after the opening tag, index of the call) -> the call and where its body ends; raises Malformed."""


@dataclass(frozen=True)
class Tags:
    """How a format marks its calls."""

    open: str
    close: str
    expected: str
    """A well-formed call, for error messages."""
    noise: tuple[str, ...] = ()
    """Tags around groups of calls: no text of their own."""


def parse_tagged(text: str, tags: Tags, read: ReadBody) -> Parsed:
    """All calls of a turn, in order; text between them becomes content."""
    parsed, text = split_thinking(text)
    pieces, at = [], 0
    while (start := text.find(tags.open, at)) >= 0:
        pieces.append(text[at:start])
        call, at = _read_one(text, start + len(tags.open), len(parsed.calls), tags, read)
        parsed.calls.append(call)
    pieces.append(text[at:])
    if parsed.calls:
        pieces = [_without(piece, tags.noise) for piece in pieces]
    parsed.content = join_text(pieces) if parsed.calls else text
    return parsed


def _read_one(text: str, body: int, index: int, tags: Tags, read: ReadBody) -> tuple[Call, int]:
    try:
        call, end = read(text, body, index)
        if text[end:].lstrip().startswith(tags.close):
            return call, text.index(tags.close, end) + len(tags.close)
        rest = text[end:].strip()
        problem = (
            f"unexpected text {rest[:30]!r} before {tags.close}" if rest else f"{tags.close} is missing at the end"
        )
        name = call.name
    except Malformed as error:
        problem, name = str(error), None
    end = _resume(text, body, tags)
    seed = text[body:end]
    return broken(problem, seed, index, expected=tags.expected, **({"name": name} if name else {})), end


def _resume(text: str, body: int, tags: Tags) -> int:
    """Where reading goes on after a malformed call: past its closing tag, or at the next opening one."""
    close, following = text.find(tags.close, body), text.find(tags.open, body)
    if close >= 0 and not 0 <= following < close:
        return close + len(tags.close)
    return following if following >= 0 else len(text)


def _without(text: str, noise: tuple[str, ...]) -> str:
    for tag in noise:
        text = text.replace(tag, "")
    return text
