"""Generalised advantage estimation with a critic's values."""

import torch
from torch import Tensor

from agentrl.algorithms.advantages.scores import temporal_differences, whiten
from agentrl.algorithms.segments import latest, turn_starts
from agentrl.core.points import advantage_estimator


@advantage_estimator("gae")
def gae(
    rewards: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor,
    trajectory: Tensor,
    group: Tensor,
    *,
    values: Tensor,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Generalised advantages, whitened over the batch's model tokens, and returns (GAE, arXiv 1506.02438).

    `values` f32 [T]: entry t is the critic's value of the state in which token t was sampled. Returns (advantages f32
    [T], returns f32 [T]: the critic's targets), both 0 off the mask.

    The state after a model token is that before the next model token: tool and user tokens in between are neither
    valued nor discounted. A trajectory of several sequences is one episode: the state after a sequence's
    last model token is that before the first one of its next sequence. Nothing is bootstrapped at the end.
    """
    raw = temporal_differences(rewards, values, mask, cu_seqlens, trajectory, gamma=gamma, lam=lam)
    return whiten(raw, mask), (raw + values) * mask


@advantage_estimator("gae_turn")
def gae_turn(
    rewards: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor,
    trajectory: Tensor,
    group: Tensor,
    *,
    values: Tensor,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """GAE in which a whole turn is one action (turn-level PPO, arXiv 2505.11821).

    As `gae`, but a step is from a turn's first token to the next turn's: `gamma` and `lam` count turns, and all
    tokens of a turn share its advantage and its return. For long turns and rewards that tools and interactions give
    turn by turn (`reward.tool_turn_weight`, `reward.interaction_turn_weight`).
    """
    starts = turn_starts(mask, cu_seqlens)
    raw = temporal_differences(rewards, values, starts, cu_seqlens, trajectory, gamma=gamma, lam=lam)
    first = latest(starts)
    advantages = torch.where(mask, raw[first], 0.0)
    returns = torch.where(mask, (raw + values)[first], 0.0)
    return whiten(advantages, mask), returns
