"""The prompts and trajectories that a step trains on: filters of groups, and policy filtration.

A filter of groups (`algorithm.filter_groups`) is a function of `values`, the metric of a group's scored trajectories.
It tells whether the group is trained on. It may name `trajectories`, all of the group, as a keyword. Policy filtration
draws trajectories by their scores (PF-PPO, arXiv 2409.06957).
"""

from collections.abc import Callable, Sequence
from math import isclose
from typing import Any

import torch
from torch import Tensor

from agentrl.core.contracts import keywords_of
from agentrl.core.points import GROUP_FILTERS, group_filter

KEY = "algorithm.filter_groups.keep"
# Every trajectory keeps a chance: torch cannot draw from weights that are all 0.
FLOOR = 1e-8

PF_PPO_METHODS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "pow": lambda scores, weight_pow: scores.abs() ** weight_pow,
    "max_min": lambda scores, _: ((scores == scores.max()) | (scores == scores.min())).double(),
    "max_random": lambda scores, _: torch.where(scores == scores.max(), 0.4, 0.1).double(),
}
"""Weights of trajectories by `algorithm.pf_ppo.reweight_method`: (scores float64 [N], weight_pow) -> [N]."""


def draw(scores: Tensor, method: str, *, weight_pow: float, generator: torch.Generator) -> Tensor:
    """N of N trajectories, drawn with replacement by their scores: int64 [N], ascending.

    Weights: pow, |score| ** `weight_pow`; max_min, only the best and the worst; max_random, the best four times as
    likely as the others.
    """
    if not scores.numel():
        return torch.empty(0, dtype=torch.long)
    weights = PF_PPO_METHODS[method](scores.double().cpu(), weight_pow) + FLOOR
    return torch.multinomial(weights, scores.numel(), replacement=True, generator=generator).sort().values


@group_filter("differing")
def differing(values: Sequence[float]) -> bool:
    """The values differ, so that a comparison says something (DAPO, arXiv 2503.14476)."""
    return any(not isclose(value, values[0], rel_tol=1e-9, abs_tol=1e-9) for value in values)


def keeps(name: str, values: Sequence[float], trajectories: Sequence[Any]) -> bool:
    """Whether the filter `name` keeps a group. Raises UserError for one that is not there or fails."""
    function = GROUP_FILTERS.get(name, KEY)
    given = {"trajectories": trajectories} if "trajectories" in keywords_of(function) else {}
    return bool(GROUP_FILTERS.make(name, KEY, values, **given))
