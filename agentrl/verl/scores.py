"""verl's choice of a scorer by `data_source`, under its name and signature, for reward functions and managers that call
it. The scorers themselves are those of `agentrl.rewards.standard`.
"""

import asyncio
from collections.abc import Callable
from threading import Thread
from typing import Any

from agentrl.rewards.function import load_reward_function
from agentrl.rewards.ready_made import CODE_SOURCES, function_for

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
        return code(data_source, solution_str, ground_truth, sandbox_fusion_url, memory_limit_mb)
    loaded = load_reward_function(None, function, {})
    assert loaded is not None
    return loaded.function(data_source, solution_str, ground_truth, extra_info)


def get_default_compute_score(reward_name: str | None) -> Callable[..., Any]:
    """The same one for every reward manager."""
    return default_compute_score


def code(
    data_source: str, solution_str: str, ground_truth: Any, url: str | None = None, memory_limit_mb: int | None = None
) -> float:
    """The score of a program, run by the server at `url`, else in a sandbox. Raises InfraError, UserError."""
    found: list[float] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            found.append(asyncio.run(_scored(data_source, solution_str, ground_truth, url, memory_limit_mb)))
        except Exception as error:  # raised below, by the caller's thread
            errors.append(error)

    # In a thread with a loop of its own: the caller may be on one already.
    worker = Thread(target=work)
    worker.start()
    worker.join()
    if errors:
        raise errors[0]
    return found[0]


async def _scored(
    data_source: str, solution_str: str, ground_truth: Any, url: str | None, memory_limit_mb: int | None
) -> float:
    from agentrl.rewards.sources import compute_score
    from agentrl.sandbox.sandbox import Sandbox

    sandbox = Sandbox(url, memory_limit_mb=memory_limit_mb or MEMORY_MB)
    try:
        result = await compute_score(data_source, solution_str, ground_truth, None, sandbox=sandbox)
        return float(result["score"])
    finally:
        await sandbox.close()
