"""Rewards for questions whose answer is a short text: exact match and F1 over words (SQuAD, arXiv 1606.05250).

The answer is what stands in the model's last <answer> tag, as Search-R1 asks for; without one the score is 0. The
ground truth is a text, a list of texts any of which will do, or {"target": either}.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def exact_match(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """1.0 when the answer is one of the truths; case, articles, punctuation and white space do not matter."""
    answer = _answer(solution_str)
    return float(answer is not None and answer in [_words(truth) for truth in _truths(ground_truth)])


def f1(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> dict[str, float]:
    """The best F1 over words against any of the truths, and `exact_match`."""
    answer = _answer(solution_str)
    truths = [_words(truth) for truth in _truths(ground_truth)]
    best = max((_f1(answer, truth) for truth in truths), default=0.0) if answer is not None else 0.0
    return {"score": best, "exact_match": float(answer in truths)}


def _answer(solution: str) -> list[str] | None:
    tagged = ANSWER.findall(solution)
    return _words(tagged[-1]) if tagged else None


def _truths(ground_truth: Any) -> list[str]:
    if isinstance(ground_truth, dict):
        ground_truth = ground_truth["target"]
    if isinstance(ground_truth, str) or not isinstance(ground_truth, Sequence):
        return [str(ground_truth)]
    return [str(truth) for truth in ground_truth]


def _words(text: str) -> list[str]:
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def _f1(answer: list[str], truth: list[str]) -> float:
    shared = sum((Counter(answer) & Counter(truth)).values())
    if not answer or not truth:
        return float(answer == truth)
    return 2 * shared / (len(answer) + len(truth))
