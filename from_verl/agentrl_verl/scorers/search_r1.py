"""Questions as Search-R1 scores them: the last <answer>...</answer> is one of the truths, word for word.

Letter case, articles, punctuation and white space do not matter (SQuAD's normal form, arXiv 1606.05250).
"""

import re
import string
from collections.abc import Iterable, Mapping
from typing import Any

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
MOST_TAGS = 10
"""More opening or closing tags than this quarter the score."""


def compute_score(
    solution_str: str, ground_truth: Any, method: str = "strict", format_score: float = 0.0, score: float = 1.0
) -> float:
    """`score` for the right answer, `format_score` for another, 0 for none.

    `ground_truth`: {"target": a text, or texts any of which will do}.
    """
    answer = extract_solution(solution_str)
    if answer is None:
        return 0.0
    if not em_check(answer, _truths(ground_truth)):
        return format_score
    return score / 4 if max(count_answer_tags(solution_str)) > MOST_TAGS else score


def compute_score_subem(
    solution_str: str, ground_truth: Any, method: str = "strict", format_score: float = 0.0, score: float = 1.0
) -> float:
    """As `compute_score`, where an answer that contains a truth is right too."""
    answer = extract_solution(solution_str)
    if answer is None:
        return 0.0
    return score if subem_check(answer, _truths(ground_truth)) else format_score


def extract_solution(solution_str: str) -> str | None:
    """What stands in the last <answer>...</answer>."""
    found = ANSWER.findall(solution_str)
    return str(found[-1]).strip() if found else None


def count_answer_tags(text: str) -> tuple[int, int]:
    """Opening and closing tags."""
    return text.count("<answer>"), text.count("</answer>")


def em_check(prediction: str, golden_answers: str | Iterable[str]) -> int:
    """1 when `prediction` is one of the answers."""
    said = normalize_answer(prediction)
    return int(any(normalize_answer(truth) == said for truth in _several(golden_answers)))


def subem_check(prediction: str, golden_answers: str | Iterable[str]) -> int:
    """1 when one of the answers stands in `prediction`."""
    said = normalize_answer(prediction)
    return int(any(normalize_answer(truth) in said for truth in _several(golden_answers)))


def normalize_answer(s: str) -> str:
    """Small letters, no punctuation, no articles, single spaces."""
    return " ".join(ARTICLES.sub(" ", s.lower().translate(PUNCTUATION)).split())


def _truths(ground_truth: Any) -> Any:
    return ground_truth["target"] if isinstance(ground_truth, Mapping) else ground_truth


def _several(answers: str | Iterable[str]) -> Iterable[str]:
    return [answers] if isinstance(answers, str) else answers
