"""Estimates from a sample of answers. Pure functions."""

from collections.abc import Sequence
from math import comb

import numpy as np


def pass_at_k(n: int, passed: int, k: int) -> float:
    """The probability that one of `k` answers passes if `passed` of `n` did: unbiased (arXiv 2107.03374).

    It is 1 - C(n - passed, k) / C(n, k), the share of k-subsets that hold a passing answer. Raises ValueError unless
    1 <= k <= n and 0 <= passed <= n.
    """
    if not (1 <= k <= n and 0 <= passed <= n):
        raise ValueError(f"pass@{k} of {passed} in {n} answers")
    return 1.0 - comb(n - passed, k) / comb(n, k)


def interval(
    values: Sequence[float], *, confidence: float, resamples: int, seed: int = 0
) -> tuple[float, float] | None:
    """Bootstrap percentile bounds of the mean; rows are resampled with replacement.

    None with `resamples` 0 or fewer than two values: nothing could vary.
    """
    if resamples == 0 or len(values) < 2:
        return None
    data, generator = np.asarray(values, dtype=np.float64), np.random.default_rng(seed)
    means = [data[generator.integers(0, len(data), len(data))].mean() for _ in range(resamples)]
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return float(low), float(high)


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4, ... up to `limit`."""
    return [1 << i for i in range(limit.bit_length())]
