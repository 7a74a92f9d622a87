"""How a trajectory's advantage falls on its ledgers, where it has several."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from numbers import Real

import torch

from agentrl.algorithms.segments import sequence_of
from agentrl.core.errors import UserError
from agentrl.training.batch import Batch
from agentrl.trajectory.trajectory import Trajectory

WEIGHTS = "ledger_weights"
"""The value of a reward function's dict with a weight for each ledger."""


def credit_ledgers(batch: Batch, trajectories: Sequence[Trajectory], credit: str) -> Batch:
    """The batch with advantages as `algorithm.ledger_credit` says; raises UserError for weights that do not fit.

    A ledger of weight 0 leaves the mask: it does not count in the loss or its mean.
    """
    if credit == "all" or not batch.num_sequences:
        return batch
    assert batch.advantages is not None
    weights = torch.tensor(_weights(batch, trajectories, credit), device=batch.ids.device)
    weight = weights[sequence_of(batch.cu_seqlens)]
    return replace(batch, advantages=batch.advantages * weight, mask=batch.mask & (weight != 0))


def _weights(batch: Batch, trajectories: Sequence[Trajectory], credit: str) -> list[float]:
    """The weight of each sequence."""
    if credit == "last":
        players = batch.players()[0].tolist()
        last = {player: i for i, player in enumerate(players)}
        return [float(last[player] == i) for i, player in enumerate(players)]
    owners = batch.trajectory.tolist()
    return [weight for owner in dict.fromkeys(owners) for weight in _given(trajectories[owner])]


def _given(trajectory: Trajectory) -> list[float]:
    """The weights of a trajectory's trained ledgers, as its reward function gave them; 1 without any."""
    ledgers = trajectory.ledgers
    given = trajectory.reward_extra.get(WEIGHTS)
    weights = {} if given is None else given
    if isinstance(weights, Mapping):
        named = {str(number): weight for number, weight in weights.items()}
        weights = [named.pop(str(number), 1.0) for number in range(len(ledgers))] + list(named)
    fits = isinstance(weights, Sequence) and len(weights) == len(ledgers)
    if not (fits and all(isinstance(weight, Real) and isfinite(weight) for weight in weights)):
        raise UserError(
            f"the reward function gave {given!r:.200} as {WEIGHTS} for the {len(ledgers)} ledgers of {trajectory.key}: "
            "give a list with a number for each, or a dict by their numbers from 0"
        )
    return [float(weight) for weight, ledger in zip(weights, ledgers, strict=True) if ledger.model_tokens]
