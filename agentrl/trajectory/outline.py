"""The outline of a ledger: a few numbers a turn, by which a run is steered without its tokens.

A line is a run of tokens with one mask. The last token of each turn of the model is a line of one token, for rewards
fall on it: so columns of one entry a line say as much as columns of one entry a token.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.trajectory.ledger import Ledger


class Lines:
    """A column of one value a line, which is read as an array of one value a token."""

    def __init__(self, values: Any, counts: Any) -> None:
        """`values`, `counts`: arrays [L]; a line stands for `counts` tokens."""
        self.values, self.counts = np.asarray(values), np.asarray(counts)

    def __len__(self) -> int:
        return int(self.counts.sum())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.repeat(self.values, self.counts).astype(dtype or self.values.dtype, copy=False)


@dataclass(frozen=True)
class LedgerOutline:
    """Facts about the tokens of a ledger, under the names that they have there."""

    counts: list[int]
    """Tokens of each line."""
    mask: list[bool]
    """Whether the model made them."""
    prompt_length: int
    side: int
    teacher: int
    images: bool
    """Whether tokens stand for images or videos."""
    columns: int
    """Number of columns that not every ledger has: of images, routes, teachers."""
    prompt: bytes
    """A digest of the tokens before the model's first one: equal where these are."""
    turn_ends: dict[int, int]
    drawn_by: dict[int, int]

    @classmethod
    def of(cls, ledger: Ledger) -> "LedgerOutline":
        """The outline of a ledger with tokens."""
        mask, ends = ledger.mask.numpy().astype(np.bool_), ledger.turn_ends
        last = [*ends.values()]
        cuts = {0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), *last, *(at + 1 for at in last)}
        starts = sorted(cuts - {len(mask)})
        before = ledger.ids.numpy()[: int(mask.argmax()) if mask.any() else len(mask) - 1]
        return cls(
            counts=np.diff([*starts, len(mask)]).tolist(),
            mask=mask[starts].tolist(),
            prompt_length=ledger.prompt_length,
            side=ledger.side,
            teacher=ledger.teacher,
            images=bool(ledger.media),
            columns=len(ledger.optional),
            prompt=blake2b(before.tobytes(), digest_size=16).digest(),
            turn_ends=ends,
            drawn_by=ledger.drawn_by,
        )

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def response_length(self) -> int:
        """Tokens after the prompt, of any source."""
        return len(self) - self.prompt_length

    @property
    def model_tokens(self) -> int:
        """Tokens the model made."""
        return sum(count for count, made in zip(self.counts, self.mask, strict=True) if made)

    @property
    def prompt_tokens(self) -> int:
        """Tokens before the model's first one."""
        return self.counts[0]


def turn_sizes(ledger: Ledger | LedgerOutline) -> list[tuple[int, int]]:
    """Tokens before each of the model's turns, and those of the turn."""
    mask = np.repeat(ledger.mask, ledger.counts) if isinstance(ledger, LedgerOutline) else ledger.mask.numpy()
    last = np.array([*ledger.turn_ends.values()], dtype=np.int64)
    sizes = np.diff(np.cumsum(mask)[last], prepend=0)
    return list(zip((last + 1 - sizes).tolist(), sizes.tolist(), strict=True))
