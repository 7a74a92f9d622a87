"""Reward functions with verl's numbers; `data_source` chooses among them (FUNCTIONS of this folder)."""

from typing import Any

from agentrl_verl.scorers import dapo as dapo_math
from agentrl_verl.scorers import geometry3k as geometry
from agentrl_verl.scorers import gsm8k as grade_school
from agentrl_verl.scorers import hendrycks
from agentrl_verl.scorers import numina as prime
from agentrl_verl.scorers import search_r1 as questions


def gsm8k(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """1 when the number after the last "#### " is the truth, character by character but for commas."""
    return float(grade_school.compute_score(solution_str, ground_truth))


def math(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    r"""1 when the last \boxed{...} has the truth's normal form."""
    return hendrycks.compute_score(solution_str, ground_truth)


def dapo(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> dict[str, Any]:
    r"""1 or -1: the last "Answer: ...", else the last \boxed{...}; with `acc` and `pred`."""
    return dapo_math.compute_score(solution_str, ground_truth)


def numina(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """1 for an equal answer, by text, by number or by sympy. Raises UserError."""
    return float(prime.compute_score(solution_str, ground_truth)[0])


def geometry3k(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """0.9 for the answer and 0.1 for the form. Raises UserError."""
    return geometry.compute_score(solution_str, ground_truth)


def search_r1(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """1 when the last <answer>...</answer> is one of the truths in {"target": ...}."""
    return questions.compute_score(solution_str, ground_truth)
