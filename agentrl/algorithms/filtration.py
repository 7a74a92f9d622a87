"""Policy filtration: choose the trajectories of an update by their scores (PF-PPO, arXiv 2409.06957)."""

from collections.abc import Callable

import torch
from torch import Tensor

# Every trajectory keeps a chance: torch cannot draw from weights that are all 0.
FLOOR = 1e-8


def _pow(scores: Tensor, weight_pow: float) -> Tensor:
    return scores.abs() ** weight_pow


def _max_min(scores: Tensor, weight_pow: float) -> Tensor:
    return ((scores == scores.max()) | (scores == scores.min())).double()


def _max_random(scores: Tensor, weight_pow: float) -> Tensor:
    return torch.where(scores == scores.max(), 0.4, 0.1).double()


PF_PPO_METHODS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "pow": _pow,
    "max_min": _max_min,
    "max_random": _max_random,
}
"""Weights of trajectories by `algorithm.pf_ppo.reweight_method`: (scores float64 [N], weight_pow) -> [N]."""


def draw(scores: Tensor, method: str, *, weight_pow: float, generator: torch.Generator) -> Tensor:
    """As many trajectories as there are, drawn with replacement by their scores: int64 [N], ascending.

    Weights: pow, |score| ** `weight_pow`; max_min, only the best and the worst; max_random, the best four times as
    likely as the others.
    """
    if not scores.numel():
        return torch.empty(0, dtype=torch.long)
    weights = PF_PPO_METHODS[method](scores.double().cpu(), weight_pow) + FLOOR
    return torch.multinomial(weights, scores.numel(), replacement=True, generator=generator).sort().values
