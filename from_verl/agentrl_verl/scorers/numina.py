r"""numina_* (PRIME's mathematics, arXiv 2502.01456): an answer found by its wording, equal by PRM800K's grader or by
number.
"""

import math
from typing import Any

from agentrl_verl.scorers import boxes
from agentrl_verl.scorers.grader import grade_answer
from agentrl_verl.scorers.numbers import ODD, math_equal

__all__ = ["compute_score", "grade_answer", "match_answer", "math_equal", "remove_boxed"]

BEFORE = ("answer:", "answer is", "answers are")
AFTER = ("is answer", "is the answer", "are answers", "are the answers")
VERBS = ("be ", "is ", "are ", "=", ": ", "get ", "be\n", "is\n", "are\n", ":\n", "get\n")
PI = "\\pi"


def compute_score(model_output: Any, ground_truth: Any) -> tuple[bool, bool, str]:
    """(whether the answer is right, whether the form is, the answer). Raises UserError."""
    said, truth = str(model_output), str(ground_truth)
    _, answer = match_answer(said)
    if grade_answer(answer, truth):
        return True, True, answer
    return _equal(answer, truth), "Step 2:" in said and "\\box" in said, answer


def match_answer(response: str) -> tuple[bool, str]:
    """(whether there is an answer with a digit in it, the answer): what is left between the words around it."""
    found = response
    for words in BEFORE:
        found = _after(found, words)
    for words in AFTER:
        if (at := found.lower().rfind(words)) >= 0:
            found = found[:at].strip()
    found = _boxed(found) or found
    at = found.lower().rfind(". ")
    sentence = found if at < 0 else found[:at].strip()
    answer = sentence
    for words in VERBS:
        answer = _after(answer, words)
    matched = found != response or answer != sentence
    return matched and any(char.isdigit() for char in answer), answer


def remove_boxed(s: str) -> str | None:
    r"""What stands in `\boxed{...}`; None for anything else."""
    return s[len("\\boxed{") : -1] if s.startswith("\\boxed{") and s.endswith("}") else None


def _after(text: str, words: str) -> str:
    """What follows the last `words`; the text itself without them."""
    at = text.lower().rfind(words)
    return text if at < 0 else text[at + len(words) :].strip()


def _boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}`, else in the last `\fbox{...}`."""
    box = boxes.last_box(text, "\\boxed", "\\fbox")
    return box[box.index("{") + 1 : -1].strip() if box else None


def _equal(answer: str, truth: str) -> bool:
    values = (math.pi, 3.14) if PI in answer or PI in truth else (math.pi,)
    try:
        verdicts = [math_equal(answer, truth, pi=pi) for pi in values]  # all of them: each may raise
        return any(verdicts)
    except ODD:
        return False
