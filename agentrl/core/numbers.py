"""Rewards as other people's code gives them."""

from typing import Any

from agentrl.core.errors import InfraError

LARGEST = 1e16
"""Of a reward: the square of a larger one may be infinite in 32 bits, and would spoil the update of a whole batch."""


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
