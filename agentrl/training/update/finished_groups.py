"""Accumulates the gradients of a step's finished groups, while the trainer waits for the others.

Invariant: it changes when gradients are computed, not what a step trains on: `EarlyGradients` compares.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any, Protocol

from agentrl.algorithms import ADVANTAGES
from agentrl.config.derived import deterministic, has_baselines
from agentrl.config.schema import Config
from agentrl.training.batches.batch import Batch
from agentrl.training.update.advantages import ComputeAdvantages
from agentrl.trajectory.trajectory import Trajectory

MAX_PARTS = 8
"""A part has at least this share of the batch's groups: small passes are slow."""


class EarlyTrainer(Protocol):
    """The methods of `Runtime` that are used here."""

    learner: Any
    """Packs trajectories."""

    def can_accumulate_early(self) -> bool:
        """Whether `accumulate_early` is of use."""

    def accumulate_early(self, part: Batch) -> None:
        """Compute the gradients of whole groups."""


class FinishedGroups:
    """Called with the finished trajectories of a step several times a second. `advantages` reports none."""

    def __init__(self, config: Config, runtime: EarlyTrainer, advantages: ComputeAdvantages) -> None:
        self.n, self.runtime, self.advantages = config.rollout.n, runtime, advantages
        self.known_early = known_early(config)
        self._step, self._accumulated = 0, set[int]()

    def __call__(self, step: int, finished: Mapping[int, Trajectory], groups: int) -> None:
        """Accumulate the finished ones of a batch's `groups`, where they are enough and not all.

        `finished`: trajectories by index, group by group.
        """
        if step != self._step:
            self._step, self._accumulated = step, set()
        if not self.known_early:
            return
        left = [group for group in range(groups) if group not in self._accumulated]
        ready = [group for group in left if all(i in finished for i in self._indices(group))]
        enough = len(ready) * MAX_PARTS >= groups and len(ready) < len(left)
        if not enough or not self.runtime.can_accumulate_early():
            return
        self._accumulated.update(ready)
        trajectories = [finished[i] for i in chain.from_iterable(map(self._indices, ready))]
        packed = self.runtime.learner.pack(trajectories, step - 1)
        batch, _ = self.advantages(packed, trajectories, None, step)
        if batch.num_sequences:
            self.runtime.accumulate_early(batch)

    def _indices(self, group: int) -> range:
        return range(group * self.n, (group + 1) * self.n)


def known_early(config: Config) -> bool:
    """Whether groups are known to be trained on, and their advantages may be known, before the others are finished."""
    algorithm = config.algorithm
    chosen_later = algorithm.filter_groups.enable or algorithm.use_pf_ppo or algorithm.use_kl_in_reward
    repeats = deterministic(config.trainer, config.rollout)
    apart = ADVANTAGES.mark(algorithm.adv_estimator, "apart", "algorithm.adv_estimator")
    return bool(apart) and not (chosen_later or repeats or has_baselines(config))
