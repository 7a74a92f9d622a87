"""Cuts long tool responses.

Invariant: the result, marker included, is never over the limit, in characters or in tokens of the tokenizer.
"""

from dataclasses import dataclass
from typing import Any

MARKER = "(truncated)"
UNITS = ("characters", "tokens")
# No vocabulary has many tokens longer than this; text beyond it is cut before the tokenizer sees it, because
# encoding megabytes of output would delay all other trajectories.
MAX_TOKEN_CHARACTERS = 64


@dataclass(frozen=True)
class Truncation:
    """Cuts text to `limit` units. `side` is the part that is cut away."""

    limit: int
    unit: str = "characters"
    side: str = "middle"
    tokenizer: Any = None

    def __call__(self, text: str) -> str:
        """The text, or as much of it as fits around the marker."""
        if self.unit == "characters":
            return text if len(text) <= self.limit else self._by_characters(text, self.limit)
        # A token is at least one byte of text, so short text needs no counting.
        if len(text.encode("utf-8", "replace")) < self.limit:
            return text
        return self._by_tokens(text)

    def _by_characters(self, text: str, limit: int) -> str:
        head, tail = _side_lengths(max(limit - len(MARKER), 0), self.side)
        cut = text[:head] + MARKER + (text[-tail:] if tail else "")
        return cut if len(MARKER) <= limit else MARKER[:limit]

    def _by_tokens(self, text: str) -> str:
        far_too_long = len(text) > MAX_TOKEN_CHARACTERS * self.limit
        if far_too_long:
            text = self._by_characters(text, MAX_TOKEN_CHARACTERS * self.limit)
        ids = self._encode(text)
        if len(ids) <= self.limit:
            return text
        budget = self.limit
        while budget > 0:
            shorter = self._around_marker(ids, budget)
            # Cutting may change how the text around the cut is tokenized, so the result is measured again.
            excess = len(self._encode(shorter)) - self.limit
            if excess <= 0:
                return shorter
            budget -= excess
        return ""

    def _around_marker(self, ids: list[int], budget: int) -> str:
        head, tail = _side_lengths(max(budget - len(self._encode(MARKER)), 0), self.side)
        start, end = (self._decode(part) for part in (ids[:head], ids[len(ids) - tail :]))
        # A character of several tokens may be cut in two; its halves decode to replacement characters.
        return start.rstrip("\ufffd") + MARKER + end.lstrip("\ufffd")

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))


def _side_lengths(size: int, side: str) -> tuple[int, int]:
    """Sizes of the beginning and of the end that stay."""
    if side == "left":
        return 0, size
    return (size, 0) if side == "right" else (size - size // 2, size // 2)
