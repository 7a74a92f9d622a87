"""Turn-level credit within a group."""

import torch
from torch import Tensor

from agentrl.algorithms.advantages.scores import EPSILON, comparable, group_statistics, groups_of, temporal_differences
from agentrl.algorithms.segments import dense, numbers_within, sequence_of, turn_starts
from agentrl.core.points import advantage_estimator


@advantage_estimator("grpo_turn", grouped=True, apart=True, lines=True)
def grpo_turn(
    rewards: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor,
    trajectory: Tensor,
    group: Tensor,
    *,
    gamma: float = 1.0,
    norm_by_std: bool = True,
) -> Tensor:
    """GRPO turn by turn: the return of a turn against the group at that turn (arXiv 2505.11821).

    A turn's return is its rewards plus those of later turns, discounted by `gamma` per turn; so a tool's or an
    interaction's reward counts for the turns up to it, not for later ones. Trajectories that ended earlier are compared
    by their last turn. Without turn rewards and with `gamma` 1 this is `grpo` exactly.
    """
    starts = turn_starts(mask, cu_seqlens)
    index, trajectories = dense(trajectory)
    owners = index[sequence_of(cu_seqlens)][starts]
    numbers = numbers_within(owners)
    returns = temporal_differences(
        rewards, torch.zeros_like(rewards), starts, cu_seqlens, trajectory, gamma=gamma, lam=1.0
    )[starts].double()
    advantages = torch.zeros_like(returns)
    owner, groups = groups_of(index, group, trajectories)
    current = torch.zeros(trajectories, dtype=torch.float64, device=rewards.device)
    for number in range(int(numbers.max()) + 1 if numbers.numel() else 0):
        here = numbers == number
        current[owners[here]] = returns[here]  # ended trajectories keep their last turn's return
        count, mean, std = group_statistics(current, owner, groups)
        scaled = (current - mean) / (std + EPSILON) if norm_by_std else current - mean
        advantages[here] = comparable(scaled, count, std, mean)[owners[here]]
    if not returns.numel():
        return torch.zeros_like(rewards)
    turn = starts.cumsum(0) - 1
    return torch.where(mask, advantages[turn.clamp(min=0)], 0.0).float()
