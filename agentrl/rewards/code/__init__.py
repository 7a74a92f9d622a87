"""Rewards for code: the model's program runs in the sandbox against hidden test cases.

`reward.custom_reward_function.name=agentrl.rewards.code:compute_score`; without a reward function it is chosen for
verl's code data sets by `data_source`.
"""

from dataclasses import replace
from typing import Any

from agentrl.core.sandbox import Sandbox
from agentrl.rewards.code.cases import CODE_SOURCES, TestCases, extract_code, read_cases
from agentrl.rewards.code.grading import grade
from agentrl.rewards.code.verdict import STATUS, Verdict

__all__ = ["TestCases", "Verdict", "compute_score", "extract_code", "grade", "read_cases"]

FIRST = 10
"""Cases that count in verl's code data sets: the first ones."""
OUTPUT_BYTES = 16 << 20
"""Limit of standard output and of standard error: some tests need megabytes."""
FAILURES = [name for result, name in STATUS.items() if result not in (True, -1)]


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    sandbox: Sandbox,
    continuous: bool | None = None,
    language: str = "python",
    timeout: float = 10.0,
    total_timeout: float = 60.0,
) -> dict[str, float]:
    """Share of the test cases in `ground_truth` that the code in the model's text passes; 0 without code.

    `continuous`: only the first ten count (None: for the data sets that verl does so for). `timeout` seconds for the
    compilation and for each case, `total_timeout` for all cases. Raises InfraError, UserError.
    """
    cases = read_cases(ground_truth)
    code = extract_code(solution_str, language)
    if code is None:
        return {"score": 0.0, "no_code": 1.0} | dict.fromkeys(FAILURES, 0.0)
    if continuous or (continuous is None and data_source in CODE_SOURCES):
        cases = cases.first(FIRST)
    limits = replace(sandbox.limits(timeout), output_bytes=OUTPUT_BYTES)
    verdict = await grade(sandbox.run, code, cases, language=language, limits=limits, total=total_timeout)
    return {"score": verdict.score, "no_code": 0.0} | {name: verdict.share(name) for name in FAILURES}
