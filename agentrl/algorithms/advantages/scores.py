"""Functions of all estimators: scores of trajectories, statistics of groups, returns, whitening."""

import torch
from torch import Tensor

from agentrl.algorithms.segments import dense, discounted_sums, sequence_of, sum_by

EPSILON = 1e-6
# Scores nearer than this, relative to their size, are equal: sums of float32 token rewards have rounding errors.
EQUAL = 1e-6


def trajectory_scores(rewards: Tensor, cu_seqlens: Tensor, trajectory: Tensor) -> tuple[Tensor, Tensor]:
    """(float64 [N] scores, int64 [B] which of the N trajectories each sequence belongs to)."""
    index, n = dense(trajectory)
    return sum_by(rewards.double(), index.repeat_interleave(cu_seqlens.diff()), n), index


def groups_of(index: Tensor, group: Tensor, trajectories: int) -> tuple[Tensor, int]:
    """(int64 [N] the group of each trajectory, numbered from 0; how many groups)."""
    owner = torch.empty(trajectories, dtype=group.dtype, device=group.device)
    owner[index] = group
    return dense(owner)


def group_statistics(scores: Tensor, owner: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """(count, mean, unbiased standard deviation) of the group of each trajectory: float64 [N] each."""
    count = sum_by(torch.ones_like(scores), owner, groups)
    mean = sum_by(scores, owner, groups) / count
    variance = sum_by((scores - mean[owner]) ** 2, owner, groups) / (count - 1).clamp(min=1)
    return count[owner], mean[owner], variance.sqrt()[owner]


def comparable(advantages: Tensor, count: Tensor, std: Tensor, mean: Tensor) -> Tensor:
    """`advantages` [N], exactly 0 in groups of one and in groups whose scores are equal."""
    equal = (count < 2) | (std <= EQUAL * (1 + mean.abs()))
    return torch.where(equal, torch.zeros_like(advantages), advantages)


def spread(values: Tensor, index: Tensor, mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Each trajectory's value [N] on its model tokens, 0 elsewhere: f32 [T]."""
    return values[index].float().repeat_interleave(cu_seqlens.diff()) * mask


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Zero mean, unit (unbiased) deviation over the mask; all 0 where the values do not differ. f32 [T]."""
    kept = values[mask].double()
    if kept.numel() < 2 or (kept.max() - kept.min()) <= EQUAL * (1 + kept.abs().max()):
        return torch.zeros_like(values, dtype=torch.float32)
    whitened = (values.double() - kept.mean()) / (kept.std() + EPSILON)
    return (whitened * mask).float()


class GroupScores:
    """The scores of N trajectories, compared within their groups."""

    def __init__(self, rewards: Tensor, mask: Tensor, cu_seqlens: Tensor, trajectory: Tensor, group: Tensor) -> None:
        self.scores, self.index = trajectory_scores(rewards, cu_seqlens, trajectory)
        self.owner, self.groups = groups_of(self.index, group, self.scores.numel())
        self.count, self.mean, self.std = group_statistics(self.scores, self.owner, self.groups)
        self.mask, self.cu_seqlens = mask, cu_seqlens

    def spread(self, advantages: Tensor) -> Tensor:
        """`advantages` [N], 0 where `comparable` says so, on the model tokens: f32 [T]."""
        return spread(comparable(advantages, self.count, self.std, self.mean), self.index, self.mask, self.cu_seqlens)


def discounted_returns(
    rewards: Tensor, mask: Tensor, cu_seqlens: Tensor, trajectory: Tensor, *, gamma: float
) -> Tensor:
    """Sum of the rewards from each model token to its trajectory's end, discounted per model token: f32 [T]."""
    values = torch.zeros_like(rewards)
    return temporal_differences(rewards, values, mask, cu_seqlens, trajectory, gamma=gamma, lam=1.0)


def temporal_differences(
    rewards: Tensor, values: Tensor, steps: Tensor, cu_seqlens: Tensor, trajectory: Tensor, *, gamma: float, lam: float
) -> Tensor:
    """Discounted sum of TD errors from each step to its trajectory's end: f32 [T], 0 elsewhere.

    `steps` bool [T] marks the first token of each step; `values` f32 [T] counts there only. A step gets all rewards up
    to its trajectory's next step, also those on tool tokens. The next step of a
    sequence's last one is the first in its trajectory's next sequence; tokens between steps do not discount.
    """
    owner = trajectory[sequence_of(cu_seqlens)]
    if not (trajectory.diff() < 0).any():
        return _in_order(rewards, values, steps, owner, gamma, lam)
    order = owner.argsort(stable=True)  # a trajectory's sequences one after the other
    found = torch.empty(rewards.numel(), dtype=torch.float32, device=rewards.device)
    found[order] = _in_order(rewards[order], values[order], steps[order], owner[order], gamma, lam)
    return found


def _in_order(rewards: Tensor, values: Tensor, steps: Tensor, owner: Tensor, gamma: float, lam: float) -> Tensor:
    """`temporal_differences` where `owner` [T], the trajectory of each token, never decreases."""
    at = steps.nonzero()[:, 0]
    mine, value = owner[at], values[at].double()
    following = torch.zeros_like(value)
    following[:-1] = torch.where(mine[:-1] == mine[1:], value[1:], 0.0)
    differences = _earned(rewards, owner, steps, at) + gamma * following - value
    found = torch.zeros(rewards.numel(), dtype=torch.float32, device=rewards.device)
    found[at] = discounted_sums(differences, mine, gamma * lam).float()
    return found


def _earned(rewards: Tensor, owner: Tensor, steps: Tensor, at: Tensor) -> Tensor:
    """The rewards from each step, at the tokens `at`, to its trajectory's next: float64 like `at`."""
    given = rewards.nonzero()[:, 0]
    step = steps.cumsum(0)[given] - 1
    given, step = given[step >= 0], step[step >= 0]
    own = owner[at[step]] == owner[given]  # a reward before its trajectory's first step belongs to none
    return sum_by(rewards[given[own]].double(), step[own], at.numel())
