"""Numbers of other people: rewards of their code, limits of their configurations."""

from typing import Any

from agentrl.core.errors import InfraError

LARGEST = 1e16
"""The largest reward: the square of a larger one may be infinite in 32 bits, and spoil the update of a batch."""


def is_reward(number: float) -> bool:
    """Whether a number is finite, and none too large."""
    return abs(number) <= LARGEST


def reward_of(value: Any, giver: str) -> float:
    """A reward that `giver` has given: Python's, numpy's or torch's number. Raises InfraError."""
    try:
        number = float("nan" if isinstance(value, str | bytes) else value)
    except Exception:  # the object may be anyone's
        number = float("nan")
    if not is_reward(number):
        raise InfraError(f"{giver} gave the reward {value!r:.60}, not a finite number (of at most {LARGEST:g})")
    return number


def limit_of(value: int | None) -> int | None:
    """A limit; None where null, 0 or a negative number says that there is none."""
    return value if value is not None and value > 0 else None
