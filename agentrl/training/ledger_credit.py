"""How a trajectory's advantage falls on its ledgers, where it has several."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from numbers import Real
from typing import Any

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
    extra: Mapping[str, Any] = trajectory.reward_extra
    given, ledgers = extra.get(WEIGHTS), trajectory.ledgers
    if given is None:
        given = [1.0] * len(ledgers)
    if isinstance(given, Mapping):
        named = {str(number): weight for number, weight in given.items()}
        given = [named.pop(str(number), 1.0) for number in range(len(ledgers))]
        given = None if named else given
    if not (isinstance(given, Sequence) and all(isinstance(weight, Real) and isfinite(weight) for weight in given)):
        raise UserError(
            f"the reward function gave {extra[WEIGHTS]!r:.200} as {WEIGHTS} of {trajectory.key}: give a list with a "
            f"number for each of its {len(ledgers)} ledgers, or a dict by their numbers from 0"
        )
    if len(given) != len(ledgers):
        raise UserError(
            f"the reward function gave {len(given)} {WEIGHTS} for the {len(ledgers)} ledgers of {trajectory.key}: "
            "give one for each"
        )
    return [float(weight) for weight, ledger in zip(given, ledgers, strict=True) if ledger.model_tokens]
