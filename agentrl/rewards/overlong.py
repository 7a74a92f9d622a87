"""Penalty for answers that come near the length limit (DAPO, arXiv 2503.14476)."""

from dataclasses import dataclass

from agentrl.config.schema.reward import OverlongBuffer


@dataclass(frozen=True)
class Overlong:
    """The last `buffer` tokens before the `limit` cost up to `factor`."""

    limit: int
    """Tokens that an answer may have."""
    buffer: int
    factor: float
    log: bool = True
    """Whether the penalty is reported as a metric."""

    def penalty(self, tokens: int) -> float:
        """0 up to the buffer, then linearly down to -`factor` at the limit. `tokens`: those that the model made.

        Tokens of tools and users do not count: the model does not decide their number.
        """
        beyond = tokens - (self.limit - self.buffer)
        return -self.factor * min(max(beyond / self.buffer, 0.0), 1.0)


def overlong_penalty(overlong_buffer: OverlongBuffer, max_response_length: int) -> Overlong | None:
    """The penalty that the settings ask for; None: none."""
    if not overlong_buffer.enable:
        return None
    limit = overlong_buffer.max_resp_len or max_response_length
    buffer = overlong_buffer.len or max(1, limit // 5)
    return Overlong(limit, buffer, overlong_buffer.penalty_factor, overlong_buffer.log)
