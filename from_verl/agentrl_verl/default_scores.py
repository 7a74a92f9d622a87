"""verl's choice of a scorer by `data_source`, under its name and signature, for reward functions and managers that call
it. The scorers themselves are those of `agentrl_verl.scorers`.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentrl.core.sandbox import Sandbox
from agentrl.rewards.code import FIRST
from agentrl.rewards.code.cases import CODE_SOURCES
from agentrl.rewards.function import load_reward_function
from agentrl.rewards.ready_made import function_for
from agentrl_verl.scorers.code import judge

MEMORY_MB = 1024
"""What a program may use where nothing is said of it."""


def default_compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    sandbox_fusion_url: str | None = None,
    concurrent_semaphore: Any = None,
    memory_limit_mb: int | None = None,
    **_: Any,
) -> Any:
    """A number, or verl's mapping with "score". Raises NotImplementedError where there is no scorer, UserError."""
    function = function_for(data_source)
    if function is None:
        raise NotImplementedError(f"there is no reward function for data_source={data_source!r}")
    if data_source in CODE_SOURCES:
        printed = bool(sandbox_fusion_url)
        verdict = _judged(solution_str, ground_truth, sandbox_fusion_url, memory_limit_mb, printed=printed, first=FIRST)
        return 0.0 if verdict is None else verdict.score
    loaded = load_reward_function(None, function, {})
    assert loaded is not None
    return loaded.function(data_source, solution_str, ground_truth, extra_info)


def get_default_compute_score(reward_name: str | None) -> Callable[..., Any]:
    """The same one for every reward manager."""
    return default_compute_score


def prime_code(completion: str, test_cases: Any, continuous: bool = False) -> tuple[bool | float, Any]:
    """(whether all cases pass, or the share of the first ten with `continuous`; metadata).

    By the rules of APPS, in a sandbox. Raises InfraError, UserError.
    """
    verdict = _judged(completion, test_cases, None, None, printed=False, first=FIRST if continuous else None)
    assert verdict is not None
    if verdict.score == 1.0:
        return True, verdict.metadata[0]
    return (verdict.score if continuous else False), [*verdict.metadata]


async def parallel_compute_score_async(
    evaluation_func: Callable[..., Any],
    completions: Sequence[str],
    references: Sequence[Any],
    tasks: Sequence[str],
    extra_info: Sequence[Any] | None = None,
    num_processes: int = 64,
) -> list[float]:
    """A score of each completion, 0 for a call that fails; calls run in threads, `num_processes` at once."""
    slots = asyncio.Semaphore(num_processes)

    async def score(task: str, completion: str, reference: Any, extra: Any) -> float:
        async with slots:
            try:
                said = await asyncio.to_thread(evaluation_func, task, completion, reference, extra)
            except Exception:  # verl's counts it as wrong
                return 0.0
        return float(said["score"] if isinstance(said, dict) else said[0] if isinstance(said, tuple) else said)

    rows = zip(tasks, completions, references, extra_info or [None] * len(tasks), strict=True)
    return list(await asyncio.gather(*(score(*row) for row in rows)))


def run_test(in_outs: Any, test: Any = None, debug: bool = False, timeout: float = 15) -> tuple[list[Any], Any]:
    """(per case True, False, -1 for what failed in running, -2 for what did not compile; metadata).

    `in_outs` are the cases, `test` is the program. It runs in agentrl's sandbox. Raises InfraError, UserError.
    """
    cases = json.loads(in_outs) if isinstance(in_outs, str) else in_outs
    pairs = zip(cases["inputs"], cases["outputs"], strict=True)
    alone = [cases | {"inputs": [one], "outputs": [other]} for one, other in pairs]
    verdicts = [_judged(_fenced(test), json.dumps(case), None, None, printed=False, first=None) for case in alone]
    metadata = [dict(verdict.metadata[0] or {}) if verdict and verdict.metadata else {} for verdict in verdicts]
    results = [
        bool(verdict and verdict.score == 1.0) or told.get("error_code", False)
        for verdict, told in zip(verdicts, metadata, strict=True)
    ]
    return results, next((told for result, told in zip(results, metadata, strict=True) if result is not True), {})


def check_correctness(
    in_outs: Any, generation: str, timeout: float = 10, debug: bool = True
) -> tuple[list[Any], list[Any]]:
    """(results, [metadata]) of `run_test`."""
    results, metadata = run_test(in_outs, generation, debug, timeout)
    return results, [metadata]


def _fenced(code: str) -> str:
    return code if "```" in code else f"```python\n{code}\n```"


def sandbox_fusion(
    sandbox_fusion_url: str | None,
    concurrent_semaphore: Any,
    memory_limit_mb: int | None,
    completion: str,
    test_cases: Any,
    continuous: bool = False,
    timeout: float = 10,
) -> tuple[float, list[Any]]:
    """(share of all cases passed, or of the first ten with `continuous`; metadata). Raises InfraError, UserError.

    By the rules for a sandbox server: the one at the URL, without one agentrl's own sandbox.
    """
    first = FIRST if continuous else None
    verdict = _judged(
        completion, test_cases, sandbox_fusion_url, memory_limit_mb, printed=True, first=first, timeout=timeout
    )
    if verdict is None:
        return 0.0, [{"error": "there is no code block"}]
    return verdict.score, [*verdict.metadata]


def _judged(solution: str, truth: Any, url: str | None, memory_limit_mb: int | None, **rules: Any) -> Any:
    """`judge`, from code that is not asynchronous. Raises InfraError, UserError."""

    async def judged() -> Any:
        sandbox = Sandbox(url or None, memory_limit_mb=memory_limit_mb or MEMORY_MB)
        try:
            return await judge(solution, truth, sandbox, **rules)
        finally:
            await sandbox.close()

    with ThreadPoolExecutor(1) as thread:  # the caller may be on an event loop already
        return thread.submit(asyncio.run, judged()).result()
