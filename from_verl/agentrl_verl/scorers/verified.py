r"""math-verify's verdict, with verl's ways of finding the answer, in a process of its own."""

from functools import cache
from typing import Any

from agentrl.core.errors import InfraError, UserError
from agentrl.core.isolated import IsolatedFunction

TIMEOUT = 30.0


def compute_score(model_output: str, ground_truth: str, timeout_score: float = 0, timeout: float = TIMEOUT) -> float:
    """1 when any answer in `model_output` equals the truth, which is LaTeX; `timeout_score` after `timeout` seconds.

    0 where math-verify fails. Raises UserError without it.
    """
    try:
        return float(_right()(timeout=timeout, truth=f"\\boxed{{{ground_truth}}}", answer=model_output))
    except TimeoutError:
        return timeout_score
    except InfraError:
        return 0.0


def right(truth: str, answer: str) -> bool:
    """Whether some reading of the answer equals some reading of the truth. Raises UserError, and what math-verify does.

    Runs in the main thread of another process: math-verify's own time limits are alarms.
    """
    try:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
    except ModuleNotFoundError:
        raise UserError("math-verify is not installed; run: pip install 'agentrl[math]'") from None
    truths: list[Any] = parse(truth, (LatexExtractionConfig(),))
    answers: list[Any] = parse(answer, (ExprExtractionConfig(), LatexExtractionConfig()))
    return any(verify(one, other) for other in answers for one in truths)


@cache
def _right() -> IsolatedFunction:
    return IsolatedFunction(__name__, right.__name__, timeout=TIMEOUT)
