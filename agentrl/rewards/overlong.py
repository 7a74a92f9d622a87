"""Soft punishment of answers that come near the length limit (DAPO, arXiv 2503.14476)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Overlong:
    """The last `buffer` tokens before the `limit` cost up to `factor`."""

    limit: int
    """Tokens that an answer may have."""
    buffer: int
    factor: float
    log: bool = True
    """Whether it is reported."""

    def penalty(self, tokens: int) -> float:
        """0 up to the buffer, then falling linearly to -`factor` at the limit. `tokens`: those the model made.

        Tool and user tokens do not count: what a tool says is no fault of the model's.
        """
        beyond = tokens - (self.limit - self.buffer)
        return -self.factor * min(max(beyond / self.buffer, 0.0), 1.0)
