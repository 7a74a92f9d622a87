"""GSM8K: the number after the last `#### ` in the last 300 characters, compared as text."""

import re
from typing import Any

LAST = 300
"""Characters at the end of a solution that count."""
MARKED = re.compile(r"#### (-?[0-9.,]+)")
NUMBER = re.compile(r"-?[0-9.,]+")


def extract_solution(solution_str: str, method: str = "strict") -> str | None:
    """The answer's text. Strict: after the last mark, without commas; flexible: the last number as it stands."""
    if method not in ("strict", "flexible"):
        raise AssertionError(f"method is {method!r}: write strict or flexible")
    end = solution_str[-LAST:]
    if method == "strict":
        marked = MARKED.findall(end)
        return str(marked[-1]).replace(",", "") if marked else None
    found = NUMBER.findall(end)
    return next((number for number in reversed(found) if number != "."), "." if found else None)


def compute_score(
    solution_str: str, ground_truth: Any, method: str = "strict", format_score: float = 0.0, score: float = 1.0
) -> float:
    """`score` where the answer's text is `ground_truth`, `format_score` for another answer, 0 for none."""
    answer = extract_solution(solution_str, method)
    if answer is None:
        return 0  # verl's tool shows the model this zero as "0"
    return score if answer == ground_truth else format_score
