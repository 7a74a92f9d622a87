"""Estimators that compare the answers to one prompt. All give f32 [T], 0 off the mask.

Invariants: a trajectory counts once in its group, also with several sequences; in a group of one trajectory or of equal
scores the advantage is exactly 0, never NaN.
"""

import torch
from torch import Tensor

from agentrl.algorithms.advantages.scores import EPSILON, GroupScores, comparable, group_statistics, spread, whiten
from agentrl.algorithms.segments import sequence_of, sum_by
from agentrl.core.points import advantage_estimator


@advantage_estimator("grpo", grouped=True, apart=True, lines=True)
def grpo(
    rewards: Tensor, mask: Tensor, cu_seqlens: Tensor, trajectory: Tensor, group: Tensor, *, norm_by_std: bool = True
) -> Tensor:
    """Score minus the group's mean, over its standard deviation (GRPO, arXiv 2402.03300).

    `norm_by_std=False` leaves out the division (Dr.GRPO, arXiv 2503.20783). The deviation is the unbiased one.
    """
    compared = GroupScores(rewards, mask, cu_seqlens, trajectory, group)
    advantages = compared.scores - compared.mean
    if norm_by_std:
        advantages = advantages / (compared.std + EPSILON)
    return compared.spread(advantages)


@advantage_estimator("gdpo", grouped=True)
def gdpo(
    rewards: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor,
    trajectory: Tensor,
    group: Tensor,
    *,
    components: Tensor | None = None,
    component_weights: Tensor | None = None,
    norm_by_std: bool = True,
) -> Tensor:
    """Sum of the advantages by each part of the reward, whitened over the batch's tokens (GDPO, arXiv 2601.05242).

    `components` [B, K]: the parts of the reward of each sequence's trajectory; None: the score alone. Each has its
    advantage in the group as in grpo, times its entry of `component_weights` [K] (None: 1). No part drowns another.
    """
    compared = GroupScores(rewards, mask, cu_seqlens, trajectory, group)
    parts = compared.scores[:, None]
    if components is not None:
        parts = parts.new_empty(len(parts), components.shape[1])
        parts[compared.index] = components.to(parts)
    weights = parts.new_ones(parts.shape[1]) if component_weights is None else component_weights.to(parts)
    total = torch.zeros_like(compared.scores)
    for part, weight in zip(parts.unbind(1), weights, strict=True):
        count, mean, std = group_statistics(part, compared.owner, compared.groups)
        advantages = (part - mean) / (std + EPSILON) if norm_by_std else part - mean
        total += weight * comparable(advantages, count, std, mean)
    return whiten(spread(total, compared.index, mask, cu_seqlens), mask)


@advantage_estimator("grpo_passk", grouped=True, apart=True, lines=True)
def grpo_passk(
    rewards: Tensor, mask: Tensor, cu_seqlens: Tensor, trajectory: Tensor, group: Tensor, *, norm_by_std: bool = True
) -> Tensor:
    """The group's best trajectory gets its lead over the second, the others nothing (pass@k, arXiv 2503.19595).

    For tasks where one right answer in k is enough. Two equal best trajectories get 0. `norm_by_std` divides by the
    group's standard deviation.
    """
    compared = GroupScores(rewards, mask, cu_seqlens, trajectory, group)
    scores, owner = compared.scores, compared.owner
    advantages = torch.zeros_like(scores)
    for members in owner.argsort(stable=True).split(torch.bincount(owner, minlength=compared.groups).tolist()):
        if members.numel() > 1:
            best, second = scores[members].topk(2).values
            advantages[members[scores[members].argmax()]] = best - second
    if norm_by_std:
        advantages = advantages / (compared.std + EPSILON)
    return compared.spread(advantages)


@advantage_estimator("rloo", grouped=True, apart=True, lines=True)
def rloo(rewards: Tensor, mask: Tensor, cu_seqlens: Tensor, trajectory: Tensor, group: Tensor) -> Tensor:
    """Score minus the mean score of the group's other trajectories (RLOO, arXiv 2402.14740)."""
    compared = GroupScores(rewards, mask, cu_seqlens, trajectory, group)
    # x - (sum - x) / (n - 1) = (x - mean) * n / (n - 1)
    return compared.spread((compared.scores - compared.mean) * compared.count / (compared.count - 1).clamp(min=1))


@advantage_estimator("opo", grouped=True, apart=True)
def opo(rewards: Tensor, mask: Tensor, cu_seqlens: Tensor, trajectory: Tensor, group: Tensor) -> Tensor:
    """Score minus the group's mean score weighted by length in model tokens (OPO, arXiv 2505.23585).

    That baseline has the least variance where a trajectory's gradient grows with its length. For strictly
    on-policy training: one optimizer step per step.
    """
    compared = GroupScores(rewards, mask, cu_seqlens, trajectory, group)
    scores, owner, groups = compared.scores, compared.owner, compared.groups
    lengths = sum_by(mask.double(), compared.index[sequence_of(cu_seqlens)], scores.numel())
    baseline = sum_by(lengths * scores, owner, groups) / sum_by(lengths, owner, groups).clamp(min=1)
    return compared.spread(scores - baseline[owner])


@advantage_estimator("gpg", grouped=True, lines=True)
def gpg(rewards: Tensor, mask: Tensor, cu_seqlens: Tensor, trajectory: Tensor, group: Tensor) -> Tensor:
    """Score minus the group's mean, scaled up for groups of equal scores (GPG, arXiv 2504.02546).

    The factor is all trajectories over those in groups whose scores differ, as in the paper; verl counts those
    whose score is not 0 instead. Goes with the policy loss gpg.
    """
    compared = GroupScores(rewards, mask, cu_seqlens, trajectory, group)
    informative = comparable(torch.ones_like(compared.scores), compared.count, compared.std, compared.mean)
    factor = informative.numel() / informative.sum().clamp(min=1)
    return compared.spread(factor * (compared.scores - compared.mean))
