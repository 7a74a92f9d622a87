"""The loop over a turn that all formats with an opening tag share, and calls as JSON between two tags."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentrl.chat.parsers.calls import (
    EXCERPT_CHARACTERS,
    MAX_CALLS,
    UNKNOWN,
    Malformed,
    broken,
    join_text,
    make_call,
    match_at,
    naming,
    read_json,
    skip_space,
    too_many,
    typed_call,
)
from agentrl.chat.parsers.reasoning import calls_in_thinking, split_thinking
from agentrl.trajectory.message import Call, Parsed

Read = Callable[[str, int, int], tuple[list[Call], int]]
"""(text, position where calls begin, index of the first) -> the calls and where they end, before the closing tag;
raises Malformed."""
MakeCall = Callable[[Any, str, int], Call]
"""(decoded JSON, the JSON as written, index of the call) -> the call; raises Malformed."""


@dataclass(frozen=True)
class Tags:
    """How a format marks its calls."""

    open: tuple[str, ...]
    close: str
    """"": nothing closes a call."""
    expected: str
    """A well-formed call, for error messages."""
    noise: tuple[str, ...] = ()
    """Tags around groups of calls, which are no text."""
    channels: tuple[str, ...] = ()
    """Tags around the answer, which are no text, with calls or without."""
    signs: tuple[str, ...] = ()
    """Texts that show that a closing tag belongs to a call whose opening tag is missing."""
    begins: re.Pattern[str] | None = None
    """An opening tag that begins a call, where others like it do not."""
    several: bool = False
    """Calls may stand one after another up to the closing tag."""

    def next(self, text: str, at: int) -> tuple[int, int] | None:
        """Start and end of the first opening tag from `at` on."""
        if self.begins is not None:
            return match.span() if (match := self.begins.search(text, at)) else None
        found = [(start, start + len(tag)) for tag in self.open if (start := text.find(tag, at)) >= 0]
        return min(found, default=None)


def parse_blocks(text: str, tags: Tags, read: Read) -> Parsed:
    """All calls of a turn, in order; text between them becomes content."""
    parsed, answer = split_thinking(text)
    pieces, at = [], 0
    while (opening := tags.next(answer, at)) is not None:
        if (last := too_many(parsed.calls, tags.expected)) is not None:
            parsed.calls.append(last)
            return parsed
        pieces.append(answer[at : opening[0]])
        calls, at = _read_block(answer, opening[1], len(parsed.calls), tags, read)
        parsed.calls += calls
    pieces.append(answer[at:])
    stray = _stray(pieces, tags, len(parsed.calls))
    parsed.calls += [stray] if stray else calls_in_thinking(parsed, answer, tags.open, tags.expected)
    parsed.content = _content(answer, pieces, tags, bool(parsed.calls))
    return parsed


def _read_block(text: str, body: int, index: int, tags: Tags, read: Read) -> tuple[list[Call], int]:
    """The calls between two tags, or one malformed call, and where the block ends."""
    try:
        calls, at = read(text, body, index)
        while tags.several and not text.startswith(tags.close, skip_space(text, at)):
            more, at = read(text, at, index + len(calls))
            calls += more
        return calls, _require_close(text, at, tags, calls[0].name if len(calls) == 1 else UNKNOWN)
    except Malformed as error:
        end = _resume(text, body, tags)
        return [broken(str(error), text[body:end], index, expected=tags.expected, name=error.name)], end


def _resume(text: str, body: int, tags: Tags) -> int:
    """Where reading goes on after a malformed call: past its closing tag, or at the next opening one."""
    following = tags.next(text, body)
    limit = following[0] if following else len(text)
    close = text.find(tags.close, body, limit) if tags.close else -1
    return close + len(tags.close) if close >= 0 else limit


def _require_close(text: str, at: int, tags: Tags, name: str) -> int:
    """The position after the closing tag (white space before it skipped). Raises Malformed."""
    start = skip_space(text, at)
    if text.startswith(tags.close, start):
        return start + len(tags.close)
    rest = text[start : start + EXCERPT_CHARACTERS]
    reason = f"unexpected text {rest!r} before {tags.close}" if rest else f"{tags.close} is missing at the end"
    raise Malformed(reason, name)


def _stray(pieces: list[str], tags: Tags, index: int) -> Call | None:
    """The error for a call that lacks its opening tag."""
    for piece in pieces if tags.close and tags.signs else ():
        before, close, _ = piece.partition(tags.close)
        if close and any(sign in before for sign in tags.signs):
            return broken(f"{tags.close} without {tags.open[0]} before it", piece, index, expected=tags.expected)
    return None


def _content(answer: str, pieces: list[str], tags: Tags, called: bool) -> str:
    if not called:
        return without(answer, tags.channels)
    return join_text([without(piece, (*tags.noise, *tags.channels)) for piece in pieces])


def without(text: str, tags: tuple[str, ...]) -> str:
    """The text, less those tags."""
    return re.sub("|".join(map(re.escape, tags)), "", text) if tags else text


def read_list(value: Any, seed: str, index: int, make: MakeCall = make_call) -> list[Call]:
    """The calls in a decoded list, or the one that stands without a list. Raises Malformed."""
    items = value if isinstance(value, list) else [value]
    if not items:
        raise Malformed("the list of calls is empty")
    if len(items) > MAX_CALLS:
        raise Malformed(f"at most {MAX_CALLS} calls are read of one turn")
    return [make(item, seed, index + i) for i, item in enumerate(items)]


def read_named(text: str, body: int, index: int) -> tuple[list[Call], int]:
    """Reads a call as `{"name": ..., "arguments": {...}}`."""
    value, end = read_json(text, body)
    return [make_call(value, text[body:end], index)], end


def read_lists(make: MakeCall = make_call) -> Read:
    """Reads calls as the JSON of a list of them, or of a single one."""

    def read(text: str, body: int, index: int) -> tuple[list[Call], int]:
        value, end = read_json(text, body)
        return read_list(value, text[body:end], index, make), end

    return read


def read_headed(header: re.Pattern[str], missing: str) -> Read:
    """Reads a call as a header and then JSON. The header's groups: `name`, and perhaps `id`; `missing`: the error."""

    def read(text: str, body: int, index: int) -> tuple[list[Call], int]:
        found = match_at(header, text, body, missing)
        with naming(found["name"].strip()):
            value, end = read_json(text, found.end())
            identity = found.groupdict().get("id") or None
            return [typed_call(found["name"].strip(), value, text[body:end], index, identity=identity)], end

    return read
