"""Advantage estimators: from token rewards to token advantages, over packed sequences.

All take `(rewards f32 [T], mask bool [T], cu_seqlens int32 [B+1], trajectory int64 [B], group int64 [B])` and name
what else they read as keywords. They give advantages f32 [T] that are 0 wherever the mask is, or those and returns.
Invariants:
- a trajectory's score is the sum of its token rewards, over all of its sequences;
- statistics are over the trajectories that are there: dropped ones leave no hole;
- scores that differ by no more than the rounding of token rewards are equal, wherever those rewards lie.
"""

from collections.abc import Callable
from typing import Any

import torch
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
from agentrl.algorithms.own import blamed, check_signature, checked_column, function_of, keywords_of
from agentrl.core.errors import UserError

KEY = "algorithm.adv_estimator"
COLUMNS = ("rewards", "mask", "cu_seqlens", "trajectory", "group")
OFFERED = ("values", "baselines", "gamma", "lam", "norm_by_std", "config")
"""What an estimator may name as keywords. `config` is the section `algorithm`."""

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

BUILT_IN = frozenset(ADVANTAGES)

GROUPED = ("grpo", "grpo_turn", "grpo_passk", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline")
"""Those that say nothing with one trajectory a prompt."""


def estimator_of(name: str) -> Estimator:
    """The estimator that is called, registered or found under `name`. Raises UserError where there is none, or none
    that keeps the contract."""
    function = function_of(name, ADVANTAGES, KEY)
    if name not in BUILT_IN:
        check_signature(function, COLUMNS, OFFERED, where=f"{KEY}={name}")
    return function


def reads(name: str) -> frozenset[str]:
    """Keywords of the estimator `name`: `values` asks for a critic, `baselines` for greedy rollouts.

    Raises UserError for an unknown name.
    """
    return keywords_of(estimator_of(name))


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

    Of `options` (OFFERED) it gets those it reads. Raises UserError for an unknown name and for one of the user's own
    that fails, ValueError for a missing column.
    """
    function = estimator_of(name)
    known = keywords_of(function)
    wanted = {key: value for key, value in options.items() if key in known}
    if missing := [key for key, value in wanted.items() if value is None]:
        raise ValueError(f"{name} needs {missing[0]}")
    columns = rewards, mask, cu_seqlens, trajectory, group
    if name not in BUILT_IN:
        return _own_estimate(name, function, columns, wanted)
    result = function(*columns, **wanted)
    return result if isinstance(result, tuple) else (result, None)


def _own_estimate(
    name: str, function: Estimator, columns: tuple[Tensor, ...], wanted: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """The same by a function of the user's own, whose results are checked."""
    where = f"{KEY}={name}"
    with torch.no_grad():
        result: Any = blamed(function, where)(*(column.clone() for column in columns), **wanted)
    both = result if isinstance(result, tuple) else (result, None)
    if len(both) != 2:
        raise UserError(f"{where}: it gave {len(both)} values; return advantages, or (advantages, returns)")
    rewards, mask = columns[:2]
    advantages = checked_column(both[0], rewards, mask, where=where, what="advantages")
    if both[1] is None:
        return advantages, None
    return advantages, checked_column(both[1], rewards, mask, where=where, what="returns")
