"""Begins a step's update with the groups that are finished, while the trainer waits for the others.

Invariant: it changes when gradients are computed, not what a step trains on: `EarlyGradients` compares.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Protocol

from agentrl.algorithms import ADVANTAGES
from agentrl.config.derived import deterministic, has_baselines
from agentrl.config.schema import Config
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.packing import pack_tokens
from agentrl.training.update.advantages import ComputeAdvantages
from agentrl.trajectory.trajectory import Trajectory

PARTS = 8
"""A part has at least this share of the batch's groups: small passes are slow."""


class Beginner(Protocol):
    """The methods of `Runtime` that are used here."""

    def begins_early(self) -> bool:
        """As `Runtime` says."""

    def begin_update(self, part: Batch) -> None:
        """As `Runtime` says."""


class FinishedGroups:
    """Looks at the batch of a step several times a second."""

    def __init__(self, config: Config, runtime: Beginner, advantages: ComputeAdvantages) -> None:
        self.n, self.runtime, self.advantages = config.rollout.n, runtime, advantages
        self.known_early = known_early(config)
        self._step, self._begun = 0, set[int]()

    def __call__(self, step: int, finished: Mapping[int, Trajectory], groups: int) -> None:
        """Begin with those of a batch's `groups` that are finished, where they are enough and not all. `finished`: by
        index, group by group."""
        if step != self._step:
            self._step, self._begun = step, set()
        if not self.known_early:
            return
        ready = [g for g in range(groups) if g not in self._begun and all(i in finished for i in self._places(g))]
        if len(ready) * PARTS < groups or len(ready) + len(self._begun) == groups or not self.runtime.begins_early():
            return
        self._begun.update(ready)
        trajectories = [finished[i] for i in chain.from_iterable(map(self._places, ready))]
        batch = self.advantages.of_groups(pack_tokens(trajectories, step - 1), trajectories)
        if batch.num_sequences:
            self.runtime.begin_update(batch)

    def _places(self, group: int) -> range:
        return range(group * self.n, (group + 1) * self.n)


def known_early(config: Config) -> bool:
    """Whether groups are known to be trained on, and their advantages may be known, before the others are finished."""
    algorithm = config.algorithm
    chosen_later = algorithm.filter_groups.enable or algorithm.use_pf_ppo or algorithm.use_kl_in_reward
    repeats = deterministic(config.trainer, config.rollout)
    own = ADVANTAGES.entry(algorithm.adv_estimator, "algorithm.adv_estimator").built_in
    return own and not (chosen_later or repeats or has_baselines(config))
