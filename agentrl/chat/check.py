"""The sanity check: does the ledger read as the template itself would have written it?

Both sides are text. `strict` wants them equal; `ignore_strippable` lets differences in white space pass,
wherever they are; `disable` looks at nothing. A difference is traced to the message that shows it and, where a
later message changed how an earlier one is shown, to that later one.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from agentrl.chat.fixed_base import MARKED_USER, FixedBase
from agentrl.chat.message import Message
from agentrl.chat.template import MARK, Template, TemplateRefusal, Tools
from agentrl.prefixes import common_length

MODES = ("disable", "strict", "ignore_strippable")
EXCERPT = 40


@dataclass(frozen=True)
class Mismatch:
    """Where the ledger and the template part."""

    message: int
    """Index of the message that reads differently."""
    role: str
    rewritten_by: int | None
    """Index of the later message that changed it in the template's eyes; None: it never read as in the ledger."""
    expected: str
    """The template's text around the first difference."""
    actual: str
    """The ledger's text there."""

    def __str__(self) -> str:
        what = f"message {self.message} ({self.role})"
        why = "differs" if self.rewritten_by is None else f"was rewritten by message {self.rewritten_by}"
        return f"{what} {why}: the template shows {self.expected!r}, the ledger has {self.actual!r}"


def check_turn(
    template: Template, base: FixedBase, messages: Sequence[Message], ids: Sequence[int], mode: str
) -> Mismatch | None:
    """One turn over the fixed base; see `Chat.check_turn`. Message indices count from the assistant message."""
    if mode == "disable":
        return None
    actual = base.opening + template.decode(ids)
    observed = len(messages) > 1

    def render(count: int) -> str:
        generation = observed and count == len(messages)
        return template.render([MARKED_USER, *messages[:count]], generation=generation).partition(MARK)[2]

    return _compare(Comparison(render, messages, actual, mode), base, observed)


def check_trajectory(
    template: Template, base: FixedBase, messages: Sequence[Message], ids: Sequence[int], tools: Tools, mode: str
) -> Mismatch | None:
    """The whole conversation; see `Chat.check_trajectory`."""
    if mode == "disable":
        return None
    end = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1) + 1

    def render(count: int) -> str:
        return template.render(messages[:count], tools)

    return _compare(Comparison(render, messages[:end], template.decode(ids), mode), base, observed=False)


@dataclass(frozen=True)
class Comparison:
    """Two accounts of the same conversation."""

    render: Callable[[int], str]
    """The template's text of the first so many messages."""
    messages: Sequence[Message]
    actual: str
    """The ledger's text."""
    mode: str

    def agreed(self, text: str, other: str) -> int:
        """Characters of `text` up to its first difference from `other` that counts in this mode."""
        if self.mode == "strict":
            return common_length(text, other)
        return _nth_visible(text, common_length(_squeezed(text), _squeezed(other)))

    def equal(self, text: str, other: str) -> bool:
        return text == other or (self.mode != "strict" and _squeezed(text) == _squeezed(other))

    @cached_property
    def partial(self) -> Callable[[int], str]:
        """`render`, with "" where the template refuses; the two searches ask for the same few renders."""
        return cache(self._partial)

    def _partial(self, count: int) -> str:
        try:
            return self.render(count)
        except TemplateRefusal:
            return ""


def _compare(comparison: Comparison, base: FixedBase, observed: bool) -> Mismatch | None:
    last = len(comparison.messages) - 1
    try:
        expected = comparison.render(last + 1)
    except TemplateRefusal as error:
        return Mismatch(
            last, comparison.messages[last]["role"], None, f"(an error) {error}", comparison.actual[-EXCERPT:]
        )
    actual = comparison.actual
    if not observed:
        # After the last turn the template may write more than the stop token, or (GLM) not even that.
        expected, actual = base.split_end(expected)[0], base.split_end(actual)[0]
    return None if comparison.equal(expected, actual) else _mismatch(comparison, expected, actual)


def _mismatch(comparison: Comparison, expected: str, actual: str) -> Mismatch:
    at, at_actual = comparison.agreed(expected, actual), comparison.agreed(actual, expected)
    message = _message_at(comparison, (expected, at), (actual, at_actual))
    return Mismatch(
        message,
        comparison.messages[message]["role"],
        _rewriter(comparison, actual, message, at_actual),
        _excerpt(expected, at),
        _excerpt(actual, at_actual),
    )


def _message_at(comparison: Comparison, *places: tuple[str, int]) -> int:
    """The first message by which a render reaches past the difference, on either side of it.

    Renders only grow with the messages, so a binary search does: a long conversation costs a few renders.
    """

    def reaches(count: int) -> bool:
        partial = comparison.partial(count)
        return any(comparison.agreed(text, partial) > at for text, at in places)

    return bisect_left(range(1, len(comparison.messages)), True, key=reaches)


def _rewriter(comparison: Comparison, actual: str, message: int, at: int) -> int | None:
    """The message from which on the template no longer agrees with the ledger at `at`; None: it never did."""

    def parted(count: int) -> bool:
        return comparison.agreed(actual, comparison.partial(count)) <= at

    later = range(message + 1, len(comparison.messages) + 1)
    first = bisect_left(later, True, key=parted)
    return message + first if 0 < first < len(later) else None


def _excerpt(text: str, at: int) -> str:
    return text[max(0, at - EXCERPT // 2) : at + EXCERPT]


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _nth_visible(text: str, n: int) -> int:
    """Index of the n-th character that is not white space."""
    visible = [i for i, character in enumerate(text) if not character.isspace()]
    return visible[n] if n < len(visible) else len(text)
