"""Advantages of a batch's tokens, from the rewards of its trajectories; how they fall on several ledgers of one."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite, nan
from numbers import Real
from typing import Any

import torch

from agentrl.algorithms import estimate
from agentrl.algorithms.advantages.scores import trajectory_scores
from agentrl.algorithms.filters import draw
from agentrl.algorithms.kl import KLController, kl_penalty, penalise
from agentrl.algorithms.segments import sequence_of
from agentrl.config.derived import changed_distribution, components_of
from agentrl.config.schema import Algorithm, Config, Reward
from agentrl.core.errors import UserError
from agentrl.core.grouping import grouped
from agentrl.core.points import ADVANTAGES
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.packing import Values, advantages_by_key, place_rewards
from agentrl.training.update.off_policy import correct_batch, needs_batch_correction
from agentrl.trajectory.trajectory import Trajectory

LEDGER_WEIGHTS = "ledger_weights"
"""The value of a reward function's dict with a weight for each ledger."""
OnAdvantages = Callable[[Callable[[], dict[str, list[Values]]]], object]
"""Called with a function that returns the advantages of each ledger, by the trajectory's key."""


def advantages_of(config: Config, kl: KLController, on_advantages: OnAdvantages | None = None) -> "ComputeAdvantages":
    """The computation that a run's settings ask for."""
    corrects, seed = changed_distribution(config.rollout) is None, config.trainer.seed
    given: dict[str, Any] = {"seed": seed, "corrects": corrects, "on_advantages": on_advantages, "kl": kl}
    return ComputeAdvantages(config.algorithm, config.reward, **given)


def columns_read(config: Config) -> frozenset[str] | None:
    """Columns of tokens, besides the mask, that advantages are computed from; None: lines are enough."""
    algorithm, correction = config.algorithm, config.algorithm.rollout_correction
    name, key = algorithm.adv_estimator, "algorithm.adv_estimator"
    read = set(ADVANTAGES.keywords(name, key) & {"values"})
    if algorithm.use_kl_in_reward:
        read |= {"old_logprobs", "ref_logprobs", "kl"}
    if needs_batch_correction(correction):
        read |= {"old_logprobs", "rollout_logprobs"}
    lines = ADVANTAGES.mark(name, "lines", key)
    fits = (lines == "undiscounted" and algorithm.gamma == 1) or lines is True
    return None if fits and not read else frozenset(read)


def kl_of(algorithm: Algorithm) -> KLController:
    """The controller of the KL to the reference that is subtracted from rewards."""
    kl_ctrl = algorithm.kl_ctrl
    target = kl_ctrl.target_kl if kl_ctrl.type == "adaptive" else None
    return KLController(kl_ctrl.kl_coef, target=target, horizon=kl_ctrl.horizon)


class ComputeAdvantages:
    """Places rewards on tokens, subtracts the KL, runs the estimator, filters trajectories."""

    def __init__(
        self,
        algorithm: Algorithm,
        reward: Reward | None = None,
        *,
        seed: int,
        corrects: bool = True,
        on_advantages: OnAdvantages | None = None,
        kl: KLController | None = None,
    ) -> None:
        """`corrects`: whether engine and trainer log-probs are of the same distribution, so tokens may be rejected.
        `kl`: the controller of `algorithm.kl_ctrl`; None: a new one."""
        self.algorithm, self.reward = algorithm, reward or Reward()
        self.components = components_of(self.algorithm, self.reward)
        """Parts of the reward that the estimator reads, and their weights."""
        self.seed = seed
        self.on_advantages = on_advantages
        correction = algorithm.rollout_correction
        self.corrects_batch = corrects and not correction.bypass_mode and needs_batch_correction(correction)
        self.kl = kl or kl_of(algorithm)

    def __call__(
        self, batch: Batch, trajectories: Sequence[Trajectory], baselines: Mapping[str, float] | None, step: int
    ) -> tuple[Batch, dict[str, float]]:
        """(the batch to train on, which may be empty; metrics).

        `trajectories`: scored; `batch` was packed from them. `baselines`: row uid -> score of the prompt's greedy
        answer, where the estimator reads it.
        """
        batch, small = self._rewarded(batch, trajectories)
        if not batch.num_sequences:
            return batch, small
        if baselines is not None:
            if batch.side is not None:
                raise UserError(
                    f"algorithm.adv_estimator={self.algorithm.adv_estimator} has one baseline a prompt, and the policy "
                    "plays several sides of a game: take grpo, or let it play one side"
                )
            scores = [baselines.get(trajectories[i].row.uid, nan) for i in batch.trajectory.tolist()]
            batch.baselines = torch.tensor(scores, dtype=torch.float32, device=batch.ids.device)
        metrics = small | self.estimate(batch)
        batch = _credit_ledgers(batch, trajectories, self.algorithm.ledger_credit)
        if self.on_advantages is not None:
            self.on_advantages(partial(advantages_by_key, trajectories, batch))
        return self.filtered(batch, step), metrics

    def _rewarded(self, batch: Batch, trajectories: Sequence[Trajectory]) -> tuple[Batch, dict[str, float]]:
        """The batch with its rewards, without groups below `min_group_size`; the number of these."""
        batch = place_rewards(batch, trajectories, self.reward.turn_weights)
        if self.components:
            batch.components = _components(batch, trajectories, self.components, self.algorithm.adv_estimator)
        least = self.algorithm.min_group_size
        return (batch, {}) if least <= 1 else without_small_groups(batch, least)

    def estimate(self, batch: Batch) -> dict[str, float]:
        """Set the batch's advantages, and with a critic its returns; returns metrics.

        Rewards lose the KL to the reference where `use_kl_in_reward` is set. Raises ValueError where the estimator
        reads `values` or `baselines` and they are None.
        """
        algorithm, rewards, metrics = self.algorithm, batch.rewards, {}
        if algorithm.use_kl_in_reward:
            kl = _estimated_kl(batch, algorithm.kl_penalty) if batch.kl is None else batch.kl
            rewards, mean = penalise(rewards, kl, batch.mask, batch.cu_seqlens, coefficient=self.kl.value)
            metrics = {"actor/reward_kl": mean, "actor/reward_kl_coef": self.kl.value}
            self.kl.update(mean, batch.trajectory.unique().numel())
        if self.corrects_batch:
            found = correct_batch(batch, batch.column("old_logprobs"), algorithm.rollout_correction)
            batch.mask, batch.rejected = found.mask, found.rejected
            batch.importance, batch.capped = found.importance, found.capped
        batch.advantages, batch.returns = estimate(
            algorithm.adv_estimator,
            rewards,
            batch.mask,
            batch.cu_seqlens,
            *batch.players(),
            values=batch.values,
            baselines=batch.baselines,
            components=batch.components,
            component_weights=torch.tensor([*self.components.values()]),
            norm_by_std=algorithm.norm_adv_by_std_in_grpo,
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            config=algorithm,
        )
        if algorithm.mask_truncated_completions and batch.truncated is not None:
            batch.mask = batch.mask & ~batch.truncated[sequence_of(batch.cu_seqlens)]
            batch.advantages = batch.advantages * batch.mask
        return metrics

    def filtered(self, batch: Batch, step: int) -> Batch:
        """The batch to train on; with `use_pf_ppo`, as many trajectories drawn from it by their scores.

        A trajectory drawn twice counts as two in its group. The draw depends on the seed and `step` only. Where the
        policy plays several sides of a game, the score is that of the first: those of all add up to 0 in many games.
        """
        if not self.algorithm.use_pf_ppo:
            return batch
        pf_ppo = self.algorithm.pf_ppo
        scores, index = trajectory_scores(_of_first_sides(batch), batch.cu_seqlens, batch.trajectory)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        drawn = draw(scores, pf_ppo.reweight_method, weight_pow=pf_ppo.weight_pow, generator=generator).tolist()
        sequences = grouped(range(len(index)), index.tolist().__getitem__)
        owners = [number for number, trajectory in enumerate(drawn) for _ in sequences[trajectory]]
        picked = batch.select([sequence for trajectory in drawn for sequence in sequences[trajectory]])
        prompts: dict[int, int] = {}
        groups = [prompts.setdefault(group, len(prompts)) for group in picked.group.tolist()]
        trajectory, group = (torch.tensor(column, device=batch.ids.device) for column in (owners, groups))
        return replace(picked, trajectory=trajectory, group=group)


def without_small_groups(batch: Batch, least: int) -> tuple[Batch, dict[str, float]]:
    """The batch without groups of fewer than `least` trajectories, and the metric that counts them."""
    groups = batch.group.tolist()
    members = Counter(group for group, _ in set(zip(groups, batch.trajectory.tolist(), strict=True)))
    small = {group for group, trajectories in members.items() if trajectories < least}
    if small:
        batch = batch.select([i for i, group in enumerate(groups) if group not in small])
        batch.group = batch.group.unique(return_inverse=True)[1]
    return batch, {"rollout/small_groups": float(len(small))}


def _of_first_sides(batch: Batch) -> torch.Tensor:
    """The rewards, 0 on all sides of a trajectory but its first: f32 [T]."""
    if batch.side is None:
        return batch.rewards
    firsts = batch.side.new_full((int(batch.trajectory.max()) + 1,), int(batch.side.max()))
    firsts.scatter_reduce_(0, batch.trajectory, batch.side, "amin")
    mine = batch.side == firsts[batch.trajectory]
    return batch.rewards * mine.repeat_interleave(batch.cu_seqlens.diff())


def _components(
    batch: Batch, trajectories: Sequence[Trajectory], names: Collection[str], estimator: str
) -> torch.Tensor:
    """The values `names` of each sequence's trajectory: f32 [B, K]. One whose reward function gave no score has 0."""
    given = [trajectories[i].reward_extra for i in batch.trajectory.tolist()]
    for extra in filter(None, given):
        if unknown := [name for name in names if not isinstance(extra.get(name), Real)]:
            raise UserError(
                f"algorithm.adv_estimator={estimator}: the reward function gave no number {unknown[0]!r}, but "
                f"{', '.join(extra)}; add it to its dict, or correct algorithm.gdpo_reward_keys"
            )
    rows = [[float(extra.get(name, 0.0)) for name in names] for extra in given]
    return torch.tensor(rows, dtype=torch.float32, device=batch.ids.device)


def _estimated_kl(batch: Batch, kind: str) -> torch.Tensor:
    """KL from the policy before the step to the reference: f32 [T]."""
    return kl_penalty(batch.column("old_logprobs"), batch.column("ref_logprobs"), kind, "algorithm.kl_penalty")


def _credit_ledgers(batch: Batch, trajectories: Sequence[Trajectory], credit: str) -> Batch:
    """The batch with advantages as `algorithm.ledger_credit` says; raises UserError for weights that do not fit.

    A ledger of weight 0 leaves the mask: it does not count in the loss or its mean.
    """
    if credit == "all" or not batch.num_sequences:
        return batch
    weights = torch.tensor(_ledger_weights(batch, trajectories, credit), device=batch.ids.device)
    weight = weights[sequence_of(batch.cu_seqlens)]
    return replace(batch, advantages=batch.column("advantages") * weight, mask=batch.mask & (weight != 0))


def _ledger_weights(batch: Batch, trajectories: Sequence[Trajectory], credit: str) -> list[float]:
    """The weight of each sequence."""
    if credit == "last":
        players = batch.players()[0].tolist()
        last = {player: i for i, player in enumerate(players)}
        return [float(last[player] == i) for i, player in enumerate(players)]
    owners = batch.trajectory.tolist()
    return [weight for owner in dict.fromkeys(owners) for weight in _given_weights(trajectories[owner])]


def _given_weights(trajectory: Trajectory) -> list[float]:
    """The weights of a trajectory's trained ledgers, as its reward function gave them; 1 without any."""
    ledgers = trajectory.outlines
    given = trajectory.reward_extra.get(LEDGER_WEIGHTS)
    weights = {} if given is None else given
    if isinstance(weights, Mapping):
        named = {str(number): weight for number, weight in weights.items()}
        weights = [named.pop(str(number), 1.0) for number in range(len(ledgers))] + list(named)
    fits = isinstance(weights, Sequence) and len(weights) == len(ledgers)
    if not (fits and all(isinstance(weight, Real) and isfinite(weight) for weight in weights)):
        raise UserError(
            f"the reward function gave {given!r:.200} as {LEDGER_WEIGHTS} for the {len(ledgers)} ledgers of "
            f"{trajectory.key}: give a list with a number for each, or a dict by their numbers from 0"
        )
    return [float(weight) for weight, ledger in zip(weights, ledgers, strict=True) if ledger.model_tokens]
