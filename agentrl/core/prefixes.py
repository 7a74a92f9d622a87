"""How far two sequences agree."""

from collections.abc import Sequence
from typing import Any

STRIDE = 16


def common_length(a: Sequence[Any], b: Sequence[Any], limit: int | None = None) -> int:
    """Length of the longest common beginning, at most `limit`."""
    limit = min(len(a), len(b)) if limit is None else min(limit, len(a), len(b))
    low, step = 0, STRIDE
    # Slices compare in C: gallop ahead while they agree, then halve the piece that does not.
    while low < limit and a[low : (high := min(low + step, limit))] == b[low:high]:
        low, step = high, step * 2
    high = min(low + step, limit)
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
