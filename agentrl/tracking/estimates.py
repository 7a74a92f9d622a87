"""Computes statistics of scores, per data source.

Invariants: a row counts once, however many answers it has; an answer that could not be scored is left out and counted,
never taken for a wrong one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import comb

import numpy as np

from agentrl.config.schema.evaluation import Evaluation
from agentrl.core.grouping import grouped
from agentrl.tracking.metrics import Metrics, passed
from agentrl.trajectory.trajectory import Trajectory

ALL = "all"


@dataclass
class RowScores:
    """The scores of one row's answers; `failed`: the number of those without one, as the reward function or the rollout
    failed."""

    data_source: str
    scores: list[float]
    passed: list[bool]
    failed: int = 0
    uid: str = ""


@dataclass
class Figure:
    """An estimate with optional bounds."""

    value: float
    bounds: tuple[float, float] | None


@dataclass
class Report:
    """The statistics of one data source; `passes`: pass@k by k, over the rows with at least k scored answers."""

    data_source: str
    rows: int
    answers: int
    failed: int
    mean: Figure
    passes: dict[int, Figure] = field(default_factory=dict)


def reports(rows: Sequence[RowScores], evaluation: Evaluation) -> list[Report]:
    """One for each data source, by name, and one for all where there are several. Rows without a score do not count."""
    groups = dict(sorted(grouped(rows, lambda row: row.data_source).items()))
    if len(groups) > 1:
        groups[ALL] = list(rows)
    return [report(source, members, evaluation) for source, members in groups.items()]


def report(data_source: str, rows: Sequence[RowScores], evaluation: Evaluation) -> Report:
    """Statistics of `rows`; the mean is over the rows' means, as in verl."""
    scored = [row for row in rows if row.scores]
    fewest = min((len(row.scores) + row.failed for row in scored), default=0)
    most = max((len(row.scores) for row in scored), default=0)
    ks = [k for k in evaluation.k or powers_of_two(fewest) if k <= most] or powers_of_two(min(fewest, most))
    return Report(
        data_source,
        rows=len(scored),
        answers=sum(len(row.scores) for row in scored),
        failed=sum(row.failed for row in rows),
        mean=_figure((sum(row.scores) / len(row.scores) for row in scored), evaluation),
        passes={k: _figure(_passes(scored, k), evaluation) for k in ks},
    )


def row_scores(group: Sequence[Trajectory], evaluation: Evaluation) -> RowScores:
    """The scores of one row's trajectories."""
    fine = [t for t in group if t.scored]
    return RowScores(
        group[0].row.data_source,
        [float(t.reward or 0.0) for t in fine],
        [passed(t, evaluation.success_threshold) for t in fine],
        failed=len(group) - len(fine),
        uid=group[0].row.uid,
    )


def estimates(trajectories: Sequence[Trajectory]) -> Metrics:
    """pass@k, and 95% bounds of it and of the mean reward, by `interval`."""
    usual, groups = Evaluation(), grouped(trajectories, lambda trajectory: trajectory.row.uid)
    found = report(ALL, [row_scores(group, usual) for group in groups.values()], usual)
    figures = {"reward": found.mean} | {f"pass_at_{k}": figure for k, figure in found.passes.items()}
    metrics: Metrics = {}
    for name, one in figures.items():
        metrics |= {name: one.value} | dict(zip((f"{name}_low", f"{name}_high"), one.bounds or (), strict=False))
    return metrics


def _passes(rows: Iterable[RowScores], k: int) -> list[float]:
    return [pass_at_k(len(row.passed), sum(row.passed), k) for row in rows if len(row.passed) >= k]


def _figure(values: Iterable[float], evaluation: Evaluation) -> Figure:
    found = list(values)
    mean = sum(found) / len(found) if found else float("nan")
    bounds = interval(found, confidence=evaluation.confidence, resamples=evaluation.resamples)
    return Figure(mean, bounds)


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
