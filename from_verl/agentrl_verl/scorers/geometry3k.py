r"""geometry3k: 0.9 for the answer in the last `\boxed{...}` and 0.1 for the form, <think>...</think> before the box."""

from typing import Any

from agentrl_verl.scorers import grader

BOX = "\\boxed{"
NONE = "None"
"""The answer of a text without a box."""


def compute_score(predict_str: str, ground_truth: Any, use_boxed: bool = True, format_score: float = 0.1) -> float:
    """The answer's score and, for `format_score` of the whole, that of the form. Raises UserError."""
    answer = (1.0 - format_score) * acc_reward(predict_str, ground_truth, use_boxed)
    return answer + format_score * format_reward(predict_str)


def acc_reward(predict_str: str, ground_truth: Any, use_boxed: bool = True) -> float:
    """1 for the right answer: in the last box, or with `use_boxed` false the whole text. Raises UserError."""
    answer = extract_boxed_content(predict_str) if use_boxed else predict_str
    return float(grader.grade_answer(answer, ground_truth, grader.MATHRULER))


def format_reward(predict_str: str) -> float:
    r"""1 for a text that begins with <think> and has </think>, `\boxed{` and `}` after it, in this order."""
    end = len("<think>") if predict_str.startswith("<think>") else -1
    for mark in ("</think>", BOX, "}"):
        found = predict_str.find(mark, end) if end >= 0 else -1
        end = found + len(mark) if found >= 0 else -1
    return float(end >= 0)


def extract_boxed_content(text: str) -> str:
    r"""What stands in the last `\boxed{...}`; "None" without one that is closed."""
    _, command, after = text.rpartition(BOX)
    depth = 1
    for index, char in enumerate(after if command else ""):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return after[:index].strip()
    return NONE
