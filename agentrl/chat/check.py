"""The sanity check: compares the text of a ledger with the template's rendering of the conversation.

`strict` requires equal text; `ignore_strippable` ignores differences in white space; `disable` compares nothing. A
difference is traced to its message and, when a later message changed its rendering, to that later one. The comparison
continues after the next end of a turn, so that one report names up to `MAX_DIFFERENCES` differing turns.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from agentrl.chat.fixed_base import FixedBase
from agentrl.chat.template import Template, TemplateRefusal
from agentrl.core.prefixes import common_length
from agentrl.trajectory.message import Message, Tools

MODES = ("disable", "strict", "ignore_strippable")
EXCERPT_CHARACTERS = 40
MAX_DIFFERENCES = 8
"""Differences of one report."""


@dataclass(frozen=True)
class Mismatch:
    """A difference between ledger and template."""

    message: int | None
    """Index of the message that reads differently; None: not looked for."""
    role: str
    rewritten_by: int | None
    """Index of the later message that changed its rendering; None: it was never rendered as in the ledger."""
    expected: str
    """The template's text around the first difference."""
    actual: str
    """The ledger's text there."""
    more: tuple["Mismatch", ...] = ()
    """The differences after this one, in order; at most `MAX_DIFFERENCES` in all."""

    def __str__(self) -> str:
        text = "; ".join(difference._text() for difference in (self, *self.more))
        return text if len(self.more) + 1 < MAX_DIFFERENCES else f"{text}; perhaps more"

    def _text(self) -> str:
        what = "the conversation" if self.message is None else f"message {self.message} ({self.role})"
        why = "differs" if self.rewritten_by is None else f"was rewritten by message {self.rewritten_by}"
        return f"{what} {why}: the template shows {self.expected!r}, the ledger has {self.actual!r}"


class Comparison:
    """A ledger's text and the template's renderings of the same conversation, up to its last assistant turn."""

    def __init__(
        self, template: Template, base: FixedBase, messages: Sequence[Message], tools: Tools, actual: str, mode: str
    ) -> None:
        """`actual`: the ledger's text."""
        end = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1) + 1
        self.template, self.base, self.tools, self.mode = template, base, tools, mode
        self.messages, self.actual = messages[:end], template.comparable(actual)
        self._renders: dict[int, str] = {}
        """By count of messages. A cache of a bound method would be a reference cycle, and keep the texts in memory."""

    def render(self, count: int) -> str:
        """The template's text of the first `count` messages. Raises TemplateRefusal."""
        return self.template.comparable(self.template.render(self.messages[:count], self.tools))

    def partial(self, count: int) -> str:
        """As `render`, but "" where the template refuses; the two searches ask for the same few renders."""
        if count not in self._renders:
            try:
                self._renders[count] = self.render(count)
            except TemplateRefusal:
                self._renders[count] = ""
        return self._renders[count]

    def agreed(self, text: str, other: str) -> int:
        """Characters of `text` up to its first difference from `other` that counts in this mode."""
        if self.mode == "strict":
            return common_length(text, other)
        return _nth_visible(text, common_length(_squeezed(text), _squeezed(other)))

    def equal(self, text: str, other: str) -> bool:
        """Whether the texts differ in nothing that counts in this mode."""
        return text == other or (self.mode != "strict" and _squeezed(text) == _squeezed(other))


def ledger_text(template: Template, ids: Sequence[int], prompt: int) -> str:
    """Text of a ledger; that of its prompt apart, which a group shares, where it ends with a whole character."""
    lead = template.decode(ids[:prompt]) if prompt and template.additive else ""
    return lead + template.decode(ids[prompt:]) if lead and lead[-1] != "\ufffd" else template.decode(ids)


def compare(comparison: Comparison, *, trace: bool) -> Mismatch | None:
    """The first difference; with `trace` its message and further ones. None when all agree."""
    last, base = len(comparison.messages) - 1, comparison.base
    try:
        expected = comparison.render(last + 1)
    except TemplateRefusal as error:
        role, actual = comparison.messages[last]["role"], comparison.actual[-EXCERPT_CHARACTERS:]
        return Mismatch(last, role, None, f"(an error) {error}", actual)
    # After the last turn the template may write more than the stop token, or (GLM) not even that.
    expected, actual = base.split_end(expected)[0], base.split_end(comparison.actual)[0]
    if comparison.equal(expected, actual):
        return None
    if not trace:
        at, at_actual = comparison.agreed(expected, actual), comparison.agreed(actual, expected)
        return Mismatch(None, "", None, _excerpt(expected, at), _excerpt(actual, at_actual))
    found = list(islice(_differences(comparison, expected, actual), MAX_DIFFERENCES))
    return replace(found[0], more=tuple(found[1:]))


def _differences(comparison: Comparison, expected: str, actual: str) -> Iterator[Mismatch]:
    """One difference after the other, each taken back before the next is looked for."""
    start = 0
    while not comparison.equal(expected, actual):
        at, at_actual = comparison.agreed(expected, actual), comparison.agreed(actual, expected)
        found = _mismatch(comparison, (expected, at), (actual, at_actual), start)
        yield found
        end, end_actual = comparison.base.next_end(expected, at), comparison.base.next_end(actual, at_actual)
        if end is None or end_actual is None:
            return
        start, actual = found.message or 0, expected[:end] + actual[end_actual:]


def _mismatch(comparison: Comparison, expected: tuple[str, int], actual: tuple[str, int], start: int) -> Mismatch:
    message = _message_at(comparison, (expected, actual), start)
    role, rewriter = comparison.messages[message]["role"], _rewriter(comparison, *actual, message)
    return Mismatch(message, role, rewriter, _excerpt(*expected), _excerpt(*actual))


def _message_at(comparison: Comparison, places: Sequence[tuple[str, int]], start: int) -> int:
    """The first message, from `start` on, by which a render reaches past the difference, on either side of it."""

    def reaches(count: int) -> bool:
        partial = comparison.partial(count)
        return any(comparison.agreed(text, partial) > at for text, at in places)

    return _first(start + 1, len(comparison.messages), reaches) - 1


def _rewriter(comparison: Comparison, actual: str, at: int, message: int) -> int | None:
    """The message from which on the template no longer agrees with the ledger at `at`; None: it never did."""

    def parted(count: int) -> bool:
        return comparison.agreed(actual, comparison.partial(count)) <= at

    end = len(comparison.messages) + 1
    if message + 2 > end or parted(message + 1):
        return None
    count = _first(message + 2, end, parted)
    return count - 1 if count < end else None


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number from `low` on for which a monotone test holds, `high` where it holds for none before.

    It asks about small numbers first: renders only grow with the messages, and the short ones cost little.
    """
    step = 1
    while low + step <= high and not holds(low + step - 1):
        low, step = low + step, step * 2
    return low + bisect_left(range(low, min(low + step - 1, high)), True, key=holds)


def _excerpt(text: str, at: int) -> str:
    return text[max(0, at - EXCERPT_CHARACTERS // 2) : at + EXCERPT_CHARACTERS]


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _nth_visible(text: str, n: int) -> int:
    """Index of the n-th character that is not white space."""
    visible = [i for i, character in enumerate(text) if not character.isspace()]
    return visible[n] if n < len(visible) else len(text)
