"""REINFORCE estimators: returns against the batch, a greedy answer, or no baseline. All return f32 [T]."""

from torch import Tensor

from agentrl.algorithms.advantages.scores import GroupScores, discounted_returns, spread, trajectory_scores, whiten
from agentrl.algorithms.segments import sequence_of
from agentrl.core.points import advantage_estimator


@advantage_estimator("reinforce_plus_plus")
def reinforce_plus_plus(
    rewards: Tensor, mask: Tensor, cu_seqlens: Tensor, trajectory: Tensor, group: Tensor, *, gamma: float = 1.0
) -> Tensor:
    """Discounted return of each model token, whitened over the batch (REINFORCE++, arXiv 2501.03262).

    Returns are carried across tool and user tokens (mask 0), which neither reset nor discount them, and from a
    trajectory's later sequences into its earlier ones. Needs no groups: works with `rollout.n=1`.
    """
    return whiten(discounted_returns(rewards, mask, cu_seqlens, trajectory, gamma=gamma), mask)


@advantage_estimator("reinforce_plus_plus_baseline", grouped=True)
def reinforce_plus_plus_baseline(
    rewards: Tensor, mask: Tensor, cu_seqlens: Tensor, trajectory: Tensor, group: Tensor
) -> Tensor:
    """Score minus the group's mean, whitened over the batch's model tokens (REINFORCE++-baseline, arXiv 2501.03262).

    The deviation is over all prompts together, so easy prompts are not amplified.
    """
    compared = GroupScores(rewards, mask, cu_seqlens, trajectory, group)
    return whiten(compared.spread(compared.scores - compared.mean), mask)


@advantage_estimator("remax", lines="undiscounted")
def remax(
    rewards: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor,
    trajectory: Tensor,
    group: Tensor,
    *,
    baselines: Tensor,
    gamma: float = 1.0,
) -> Tensor:
    """Return of each model token minus the score of the prompt's greedy answer (ReMax, arXiv 2310.10505).

    `baselines` f32 [B]: that score for each sequence. NaN where the greedy rollout failed: the advantage is 0 there.
    Works with `rollout.n=1`; the greedy answer, one more rollout a prompt, is not trained on.
    """
    returns = discounted_returns(rewards, mask, cu_seqlens, trajectory, gamma=gamma)
    return (returns - baselines[sequence_of(cu_seqlens)]).nan_to_num(nan=0.0).float() * mask


@advantage_estimator("reward", apart=True, lines=True)
def reward(rewards: Tensor, mask: Tensor, cu_seqlens: Tensor, trajectory: Tensor, group: Tensor) -> Tensor:
    """The trajectory's score on each of its model tokens, without a baseline (REINFORCE, Williams 1992).

    For rewards that are centred already; unbiased, of high variance.
    """
    scores, index = trajectory_scores(rewards, cu_seqlens, trajectory)
    return spread(scores, index, mask, cu_seqlens)


@advantage_estimator("none", apart=True, lines=True)
def none(rewards: Tensor, mask: Tensor, cu_seqlens: Tensor, trajectory: Tensor, group: Tensor) -> Tensor:
    """The rewards of the model tokens, unchanged.

    For rewards given token by token; with a reward at the end only the last token has an advantage.
    """
    return rewards.float() * mask
