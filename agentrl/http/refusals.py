"""The error by which a server's handlers refuse a request."""

from typing import Literal

Fault = Literal["invalid", "context", "key", "missing", "lost", "large", "slow", "busy", "overloaded", "internal"]
"""Why a request is refused: it is wrong, too long for the model, without a rollout, to an unknown address, after an
unknown answer, too many bytes, too slow, one of too many at a time, or it came while the engine fails; or agentrl has a
bug."""


class Refused(Exception):
    """A request that gets an error for an answer. The message is one line: what is wrong, how to fix it."""

    def __init__(self, message: str, fault: Fault = "invalid", *, tokens: int = 0, limit: int = 0) -> None:
        """`tokens` of the prompt and their `limit` belong to the fault `context`."""
        super().__init__(message)
        self.fault = fault
        self.tokens, self.limit = tokens, limit
