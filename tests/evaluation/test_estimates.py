"""Estimates against slow, obvious ones."""

from itertools import combinations

import numpy as np
import pytest

from agentrl.config.schema.evaluation import Evaluation
from agentrl.tracking.estimates import RowScores, interval, pass_at_k, powers_of_two, reports


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(n: int) -> None:
    for passed in range(n + 1):
        answers = [True] * passed + [False] * (n - passed)
        for k in range(1, n + 1):
            subsets = list(combinations(answers, k))
            assert pass_at_k(n, passed, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_is_unbiased() -> None:
    """Its mean over samples is the true chance 1 - (1 - p)^k; taking pass@k of the sample's rate is not."""
    generator, p, n, k = np.random.default_rng(0), 0.3, 6, 4
    passed = generator.binomial(n, p, size=20_000)
    estimate = np.mean([pass_at_k(n, int(c), k) for c in passed])
    naive = np.mean(1 - (1 - passed / n) ** k)
    assert estimate == pytest.approx(1 - (1 - p) ** k, abs=0.005)
    assert abs(naive - (1 - (1 - p) ** k)) > 0.02


def test_more_than_there_are_is_no_question() -> None:
    with pytest.raises(ValueError, match="pass@3 of 1 in 2"):
        pass_at_k(2, 1, 3)


def test_intervals_cover_the_mean_as_often_as_they_say() -> None:
    generator = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        values = generator.random(60).tolist()
        bounds = interval(values, confidence=0.9, resamples=200, seed=trial)
        assert bounds is not None
        hits += bounds[0] <= 0.5 <= bounds[1]
    assert 0.82 < hits / 200 < 0.97


def test_nothing_varies_without_rows_or_resamples() -> None:
    assert interval([1.0], confidence=0.9, resamples=100, seed=0) is None
    assert interval([1.0, 0.0], confidence=0.9, resamples=0, seed=0) is None
    assert interval([1.0, 0.0], confidence=0.9, resamples=9, seed=3) == interval(
        [1.0, 0.0], confidence=0.9, resamples=9, seed=3
    )


def test_powers_of_two() -> None:
    assert [powers_of_two(n) for n in (0, 1, 3, 8)] == [[], [1], [1, 2], [1, 2, 4, 8]]


def scores(source: str, *values: float, failed: int = 0) -> RowScores:
    return RowScores(source, list(values), [value >= 1 for value in values], failed)


def test_a_report_for_each_source_and_all() -> None:
    rows = [scores("b", 1.0, 0.0), scores("a", 1.0, 1.0), scores("a", 0.5, 0.0, 0.0, failed=1), scores("a", failed=2)]
    found = {report.data_source: report for report in reports(rows, Evaluation(resamples=50))}
    assert list(found) == ["a", "b", "all"]
    assert (found["a"].rows, found["a"].answers, found["a"].failed) == (2, 5, 3)
    assert found["a"].mean.value == pytest.approx((1.0 + 0.5 / 3) / 2), "a row counts once"
    assert found["a"].passes[1].value == pytest.approx(0.5)
    assert found["b"].passes[2].value == 1.0
    assert found["a"].mean.bounds is not None
    assert list(found["all"].passes) == [1, 2]


def test_a_lost_answer_leaves_its_row_out_of_the_largest_k_alone() -> None:
    rows = [scores("a", 0.0, 0.0, 0.0, 1.0), scores("a", 1.0, 0.0, 0.0, failed=1)]
    (found,) = reports(rows, Evaluation(resamples=0))
    assert {k: figure.value for k, figure in found.passes.items()} == pytest.approx(
        {1: (1 / 4 + 1 / 3) / 2, 2: (1 / 2 + 2 / 3) / 2, 4: 1.0}
    )
    (alone,) = reports([rows[1], scores("a", 1.0, failed=3)], Evaluation(resamples=0))
    assert list(alone.passes) == [1, 2]  # no row has four


def test_asked_ks_leave_out_rows_with_fewer_answers() -> None:
    rows = [scores("a", 1.0), scores("a", 0.0, 0.0, 0.0)]
    (found,) = reports(rows, Evaluation(k=[3, 9]))
    assert found.passes.keys() == {3}
    assert found.passes[3].value == 0.0
