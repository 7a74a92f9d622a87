"""From trajectories to a packed batch.

Reward placement: a trajectory's reward lands on the last token that the model made in the last ledger it made any in;
a turn's reward on the last model token of that turn, in whichever ledger trains that turn. No reward ever sits on a
token with mask 0, where some estimators would lose it.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from agentrl.chat.ledger import Ledger
from agentrl.rollout.trajectory import Outcome, Trajectory
from agentrl.training.batch import Batch, bounds_of
from agentrl.training.media import Media

Spot = tuple[int, int]
"""(ledger, token within it)"""


def pack(trajectories: Sequence[Trajectory], *, tool_turn_weight: float, interaction_turn_weight: float) -> Batch:
    """Pack what may teach; the others are left out, and `Batch.trajectory` keeps the indices of the whole list.

    `tool_turn_weight` and `interaction_turn_weight` scale the turn rewards of either source. Ledgers without a model
    token teach nothing and are left out, too. Nothing trainable gives a batch of 0 sequences.
    """
    return rewarded(
        pack_tokens(trajectories),
        trajectories,
        tool_turn_weight=tool_turn_weight,
        interaction_turn_weight=interaction_turn_weight,
    )


def pack_tokens(trajectories: Sequence[Trajectory]) -> Batch:
    """The first half of `pack`, which needs no score: all that has not failed. Its rewards are 0."""
    ledgers: list[Ledger] = []
    owners: list[int] = []
    groups: list[int] = []
    numbers: dict[str, int] = {}
    for i, trajectory in enumerate(trajectories):
        kept = [] if trajectory.outcome is Outcome.INFRA_ERROR else _teaching(trajectory)
        ledgers += kept
        owners += [i] * len(kept)
        groups += [numbers.setdefault(trajectory.row.uid, len(numbers))] * len(kept)
    return pack_ledgers(ledgers, trajectory=owners, group=groups)


def rewarded(
    batch: Batch, trajectories: Sequence[Trajectory], *, tool_turn_weight: float, interaction_turn_weight: float
) -> Batch:
    """The second half: what `trajectories` were packed into, with their rewards and without those that have none."""
    weights = {"tool": tool_turn_weight, "interaction": interaction_turn_weight}
    owners = batch.trajectory.tolist()
    kept = [sequence for sequence, owner in enumerate(owners) if trajectories[owner].trainable]
    if len(kept) < len(owners):
        batch = batch.select(kept)
        batch.group = batch.group.unique(return_inverse=True)[1]
    members = [trajectories[i] for i in dict.fromkeys(batch.trajectory.tolist())]
    rewards = [reward for member in members for reward in _token_rewards(member, _teaching(member), weights)]
    return replace(batch, rewards=torch.tensor(rewards, dtype=torch.float32, device=batch.ids.device))


def _teaching(trajectory: Trajectory) -> list[Ledger]:
    return [ledger for ledger in trajectory.ledgers if ledger.model_tokens]


def pack_ledgers(
    ledgers: Sequence[Ledger],
    *,
    trajectory: Sequence[int] | None = None,
    group: Sequence[int] | None = None,
) -> Batch:
    """Pack ledgers as they are, rewards 0. `trajectory`, `group`: one a ledger (its index)."""
    lengths = [len(ledger) for ledger in ledgers]
    own = list(range(len(ledgers)))
    positions = [torch.arange(n) for n in lengths]
    return Batch(
        ids=torch.tensor([t for ledger in ledgers for t in ledger.ids], dtype=torch.long),
        positions=torch.cat(positions) if positions else torch.empty(0, dtype=torch.long),
        mask=torch.tensor([m for ledger in ledgers for m in ledger.mask], dtype=torch.bool),
        rollout_logprobs=torch.tensor([x for ledger in ledgers for x in ledger.logprobs], dtype=torch.float32),
        rewards=torch.zeros(sum(lengths)),
        cu_seqlens=bounds_of(lengths),
        trajectory=torch.tensor(own if trajectory is None else trajectory, dtype=torch.long),
        group=torch.tensor(own if group is None else group, dtype=torch.long),
        media=Media.of([ledger.media for ledger in ledgers]),
    )


def _token_rewards(trajectory: Trajectory, ledgers: list[Ledger], weights: dict[str, float]) -> list[float]:
    """Rewards of a trainable trajectory's tokens, ledger after ledger."""
    rewards = [[0.0] * len(ledger) for ledger in ledgers]
    ends = _turn_ends(ledgers)
    final = ends[max(ends)]
    rewards[final[0]][final[1]] += trajectory.reward or 0.0
    for earned in trajectory.turn_rewards:
        ledger, token = _spot(ends, earned.turn)
        rewards[ledger][token] += weights[earned.source] * earned.value
    return [reward for column in rewards for reward in column]


def _turn_ends(ledgers: list[Ledger]) -> dict[int, Spot]:
    """Where each turn's last model token lies, by turn; a later ledger wins."""
    ends: dict[int, Spot] = {}
    for i, ledger in enumerate(ledgers):
        for t, (made_by_model, turn) in enumerate(zip(ledger.mask, ledger.turns, strict=True)):
            if made_by_model:
                ends[turn] = (i, t)
    return ends


def _spot(ends: dict[int, Spot], turn: int) -> Spot:
    """The turn's last model token; of the nearest turn before it where its own is not trained, else of the first."""
    if turn in ends:
        return ends[turn]
    earlier = [t for t in ends if t < turn]
    return ends[max(earlier) if earlier else min(ends)]
