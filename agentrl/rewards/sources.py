"""The reward function that chooses another by each row's `data_source`."""

from functools import cache
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.sandbox import Sandbox
from agentrl.core.user_code import UserFunction
from agentrl.rewards.function import RewardFn, load_reward_function
from agentrl.rewards.ready_made import function_for, ready_made_functions

TIMEOUT = 120.0
"""Seconds for comparing one answer; each of sympy's comparisons has 10, programs in the sandbox have limits of their
own."""


async def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, *, sandbox: Sandbox
) -> Any:
    """The score of the function for `data_source`. Raises UserError where there is none for it."""
    fn, function = _functions(data_source)
    given = {"data_source": data_source, "solution_str": solution_str, "ground_truth": ground_truth}
    given |= {"extra_info": extra_info, "sandbox": sandbox}
    timeout = None if "sandbox" in fn.accepted else TIMEOUT
    return await function.run((), fn.arguments(given), timeout=timeout)


@cache
def _functions(data_source: str) -> tuple[RewardFn, UserFunction]:
    name = function_for(data_source)
    fn = None if name is None else load_reward_function(None, name, {})
    if fn is None:
        known = ", ".join(source for sources in ready_made_functions().values() for source in sources)
        raise UserError(
            f"data_source {data_source!r} has no reward function (there are some for {known}); "
            "name one in reward.custom_reward_function.path"
        )
    return fn, UserFunction(fn.function)
