"""Advantage estimators: from token rewards to token advantages, over packed sequences.

All take `(rewards f32 [T], mask bool [T], cu_seqlens int32 [B+1], trajectory int64 [B], group int64 [B])` and name
what else they read as keywords. They give advantages f32 [T] that are 0 wherever the mask is, or those and returns.
Invariants:
- a trajectory's score is the sum of its token rewards, over all of its sequences;
- statistics are over the trajectories that are there: dropped ones leave no hole;
- scores that differ by no more than the rounding of token rewards are equal, wherever those rewards lie.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor

from agentrl.algorithms.advantages.gae import gae, gae_turn
from agentrl.algorithms.advantages.group import gpg, grpo, grpo_passk, opo, rloo
from agentrl.algorithms.advantages.reinforce import (
    none,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    reward,
)
from agentrl.algorithms.advantages.turns import grpo_turn
from agentrl.errors import UserError

Estimator = Callable[..., Tensor | tuple[Tensor, Tensor]]

ADVANTAGES: dict[str, Estimator] = {
    function.__name__: function
    for function in (
        gae,
        gae_turn,
        grpo,
        grpo_turn,
        grpo_passk,
        rloo,
        opo,
        gpg,
        reinforce_plus_plus,
        reinforce_plus_plus_baseline,
        remax,
        reward,
        none,
    )
}
"""Estimators by `algorithm.adv_estimator`."""

GROUPED = ("grpo", "grpo_turn", "grpo_passk", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline")
"""Those that say nothing with one trajectory a prompt."""


@cache
def reads(name: str) -> frozenset[str]:
    """Keywords of the estimator `name`: `values` asks for a critic, `baselines` for greedy rollouts.

    Raises UserError for an unknown name.
    """
    if name not in ADVANTAGES:
        raise UserError(f"algorithm.adv_estimator {name!r} does not exist; it is one of {', '.join(ADVANTAGES)}")
    parameters = inspect.signature(ADVANTAGES[name]).parameters.values()
    return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def estimate(
    name: str,
    rewards: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor,
    trajectory: Tensor,
    group: Tensor,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """(advantages f32 [T], returns f32 [T] where the estimator uses a critic) by the estimator `name`.

    Of `options` (gamma, lam, norm_by_std, values, baselines) it gets those it reads. Raises UserError for an unknown
    name, ValueError for a missing column.
    """
    known = reads(name)
    wanted = {key: value for key, value in options.items() if key in known}
    if missing := [key for key, value in wanted.items() if value is None]:
        raise ValueError(f"{name} needs {missing[0]}")
    result = ADVANTAGES[name](rewards, mask, cu_seqlens, trajectory, group, **wanted)
    return result if isinstance(result, tuple) else (result, None)
