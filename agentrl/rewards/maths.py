r"""Rewards for mathematics: the model's last answer against the truth, as mathematics rather than as text.

math-verify (`pip install agentrl[math]`) decides whether two expressions are equal. It is asked only where the texts
differ, so answers that are plain numbers need no symbolic algebra.
"""

import re
from typing import Any

from agentrl.core.errors import needing
from agentrl.rewards.answers import final_answer, same_answer

SEARCHED_CHARACTERS = 300
"""Characters at the end of a text in which DAPO's data has its answer."""
ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
THOUGHT_AND_BOXED = re.compile(r"<think>.*</think>.*\\boxed\{.*\}", re.DOTALL)


def equal(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    r"""1.0 when the last \boxed{...} (else what follows "####", else the last number) equals the ground truth."""
    return float(_right(solution_str, str(ground_truth)))


def dapo(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> dict[str, float]:
    """1 or -1, and `acc`: the last "Answer: ..." near the end against the truth (DAPO's data, arXiv 2503.14476)."""
    end = solution_str[-SEARCHED_CHARACTERS:]
    named = ANSWER.findall(end)
    right = _right(f"\\boxed{{{named[-1].strip()}}}" if named else end, str(ground_truth))
    return {"score": 1.0 if right else -1.0, "acc": float(right)}


def geometry(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> dict[str, float]:
    r"""0.9 for the right answer and 0.1 for the form <think>...</think> ... \boxed{...} (geometry3k)."""
    right = _right(solution_str, str(ground_truth))
    formed = bool(THOUGHT_AND_BOXED.fullmatch(solution_str.strip()))
    return {"score": 0.9 * right + 0.1 * formed, "acc": float(right), "format": float(formed)}


def same(answer: str, truth: str) -> bool:
    """Whether two answers are equal, as text, as numbers, or as mathematics. Raises UserError."""
    return same_answer(answer, truth) or _equivalent(answer, truth)


def _right(solution: str, truth: str) -> bool:
    answer = final_answer(solution)
    return answer is not None and same(answer, truth)


def _equivalent(answer: str, truth: str) -> bool:
    with needing("math-verify", '"agentrl[math]"'):
        from math_verify import parse, verify
    # Its own time limits are alarms, which only a main thread may set; the caller's limit holds here.
    expressions = [parse(f"${text}$", parsing_timeout=None, raise_on_error=False) for text in (truth, answer)]
    return bool(verify(*expressions, timeout_seconds=None, raise_on_error=False))
