"""A reward; in a file of its own, since the process that computes it imports the whole file."""

from typing import Any


def score(data_source: str, solution_str: str, ground_truth: str, **_: Any) -> float:
    """A reward that differs between answers."""
    return sum(i * ord(c) for i, c in enumerate(solution_str, 1)) % 101 / 101
