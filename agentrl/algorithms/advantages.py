"""Advantage estimators: from token rewards to token advantages, over packed sequences.

All take `(rewards f32 [T], mask bool [T], cu_seqlens int32 [B+1], trajectory int64 [B], group int64 [B])` and give
f32 [T] that is 0 wherever the mask is. Invariants:
- a trajectory's score is the sum of its token rewards, over all of its sequences: it counts once in its group,
  into however many sequences its history was split;
- statistics are over the trajectories that are there: dropped ones leave no hole;
- where a group cannot compare (one trajectory, or all scores equal) the advantage is exactly 0, never NaN.

Scores are summed in float64, so that equal rewards in other places stay equal.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from agentrl.algorithms.segments import dense, sequence_of, sum_by

EPSILON = 1e-6
# Scores nearer than this, relative to their size, are equal: what differs is the order of summation.
EQUAL = 1e-9

Estimator = Callable[..., Tensor]


def grpo(
    rewards: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor,
    trajectory: Tensor,
    group: Tensor,
    *,
    norm_by_std: bool = True,
    gamma: float = 1.0,
) -> Tensor:
    """Score minus the group's mean, over its standard deviation (GRPO, arXiv 2402.03300).

    `norm_by_std=False` leaves out the division (Dr.GRPO, arXiv 2503.20783). The deviation is the unbiased one.
    `gamma` plays no part.
    """
    scores, index = trajectory_scores(rewards, cu_seqlens, trajectory)
    count, mean, std = _group_statistics(scores, index, group)
    advantages = scores - mean
    if norm_by_std:
        advantages = advantages / (std + EPSILON)
    return _spread(_comparable(advantages, count, std, mean), index, mask, cu_seqlens)


def rloo(
    rewards: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor,
    trajectory: Tensor,
    group: Tensor,
    *,
    norm_by_std: bool = True,
    gamma: float = 1.0,
) -> Tensor:
    """Score minus the mean score of the group's other trajectories (RLOO, arXiv 2402.14740).

    `norm_by_std` and `gamma` play no part.
    """
    scores, index = trajectory_scores(rewards, cu_seqlens, trajectory)
    count, mean, std = _group_statistics(scores, index, group)
    # x - (sum - x) / (n - 1) = (x - mean) * n / (n - 1)
    advantages = (scores - mean) * count / (count - 1).clamp(min=1)
    return _spread(_comparable(advantages, count, std, mean), index, mask, cu_seqlens)


def reinforce_plus_plus(
    rewards: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor,
    trajectory: Tensor,
    group: Tensor,
    *,
    norm_by_std: bool = True,
    gamma: float = 1.0,
) -> Tensor:
    """Discounted return of each model token, whitened over the batch (REINFORCE++, arXiv 2501.03262).

    Returns are carried across tool and user tokens (mask 0), which neither reset nor discount them, and from a
    trajectory's later sequences into its earlier ones. `group` and `norm_by_std` play no part.
    """
    returns = discounted_returns(rewards, mask, cu_seqlens, trajectory, gamma=gamma)
    return whiten(returns, mask)


ADVANTAGES: dict[str, Estimator] = {"grpo": grpo, "rloo": rloo, "reinforce_plus_plus": reinforce_plus_plus}
"""Estimators by `algorithm.adv_estimator`; all take the same arguments."""


def trajectory_scores(rewards: Tensor, cu_seqlens: Tensor, trajectory: Tensor) -> tuple[Tensor, Tensor]:
    """(float64 [N] scores, int64 [B] which of the N trajectories each sequence belongs to)."""
    index, n = dense(trajectory)
    return sum_by(rewards.double(), index[sequence_of(cu_seqlens)], n), index


def discounted_returns(
    rewards: Tensor, mask: Tensor, cu_seqlens: Tensor, trajectory: Tensor, *, gamma: float
) -> Tensor:
    """Sum of the rewards from each token to its trajectory's end, discounted per model token: f32 [T]."""
    # A walk over plain floats: 0.1 s for a million tokens, and it reads as the definition.
    reward, trained = rewards.tolist(), mask.tolist()
    bounds, owners = cu_seqlens.tolist(), trajectory.tolist()
    returns = [0.0] * len(reward)
    running: dict[int, float] = {}
    for sequence in reversed(range(len(owners))):
        value = running.get(owners[sequence], 0.0)
        for t in reversed(range(bounds[sequence], bounds[sequence + 1])):
            value = reward[t] + (gamma * value if trained[t] else value)
            returns[t] = value
        running[owners[sequence]] = value
    return torch.tensor(returns, dtype=torch.float32, device=rewards.device) * mask


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Zero mean, unit (unbiased) deviation over the mask; all 0 where the values do not differ. f32 [T]."""
    kept = values[mask].double()
    if kept.numel() < 2 or (kept.max() - kept.min()) <= EQUAL * (1 + kept.abs().max()):
        return torch.zeros_like(values, dtype=torch.float32)
    whitened = (values.double() - kept.mean()) / (kept.std() + EPSILON)
    return (whitened * mask).float()


def _group_statistics(scores: Tensor, index: Tensor, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(count, mean, unbiased standard deviation) of the group of each trajectory: float64 [N] each."""
    owner = torch.empty(scores.numel(), dtype=group.dtype, device=group.device)
    owner[index] = group
    owner, n = dense(owner)
    count = sum_by(torch.ones_like(scores), owner, n)
    mean = sum_by(scores, owner, n) / count
    variance = sum_by((scores - mean[owner]) ** 2, owner, n) / (count - 1).clamp(min=1)
    return count[owner], mean[owner], variance.sqrt()[owner]


def _comparable(advantages: Tensor, count: Tensor, std: Tensor, mean: Tensor) -> Tensor:
    silent = (count < 2) | (std <= EQUAL * (1 + mean.abs()))
    return torch.where(silent, torch.zeros_like(advantages), advantages)


def _spread(values: Tensor, index: Tensor, mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Each trajectory's value on its model tokens, 0 elsewhere: f32 [T]."""
    return values[index][sequence_of(cu_seqlens)].float() * mask
