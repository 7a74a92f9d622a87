"""Rows without a ground truth: an error where a reward function reads it, and only there."""

import pytest

from agentrl.core.errors import UserError
from agentrl.data.rows import make_row
from agentrl.rewards.function import reward_function
from agentrl.rewards.truths import check_truths


def compares(data_source: str, solution_str: str, ground_truth: str, extra_info: object = None) -> float:
    return float(solution_str == ground_truth)


def may_compare(data_source: str, solution_str: str, ground_truth: str | None = None, **_: object) -> float:
    return float(solution_str == ground_truth)


def counts(data_source: str, solution_str: str, ground_truth: str, **_: object) -> float:
    return float(len(solution_str))


def batch(data_sources: list[str], solution_strs: list[str], ground_truths: list[str], **_: object) -> list[float]:
    return [float(a == b) for a, b in zip(solution_strs, ground_truths, strict=True)]


@pytest.mark.parametrize(("function", "lists"), [(compares, False), (batch, True)])
def test_a_function_that_compares_needs_rows_with_a_truth(function: object, lists: bool) -> None:
    rows = [make_row({"prompt": "2+3?", "solution": "5"}, "rows.jsonl:1")]
    with pytest.raises(UserError, match=r"^rows.jsonl:1 has no ground truth.*there is a column 'solution': rename it"):
        check_truths(rows, [reward_function(function, {}, batch=lists)])
    check_truths([*rows, make_row({"prompt": "1+1?", "answer": "2"}, "rows.jsonl:2")], [reward_function(compares, {})])


@pytest.mark.parametrize("function", [may_compare, counts])
def test_other_functions_do_not(function: object) -> None:
    check_truths([make_row({"prompt": "2+3?"}, "rows.jsonl:1")], [reward_function(function, {})])
