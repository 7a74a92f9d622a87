"""How much each token of a batch should teach, from what its trajectories earned."""

from dataclasses import replace

import torch

from agentrl.algorithms import draw, estimate, kl_controller, kl_penalty, penalise
from agentrl.algorithms.advantages.scores import trajectory_scores
from agentrl.algorithms.segments import sequence_of
from agentrl.config.schema import Algorithm
from agentrl.training.batch import Batch
from agentrl.training.off_policy import settled, settles


class Weighing:
    """The advantage estimator of a run, the KL in its rewards, and the filtration of its trajectories."""

    def __init__(self, algorithm: Algorithm, *, seed: int, corrects: bool = True) -> None:
        """`corrects`: whether the engine's log-probs compare with the trainer's, so that tokens may be rejected."""
        self.algorithm = algorithm
        self.seed = seed
        rollout_correction = algorithm.rollout_correction
        self.settles = corrects and not rollout_correction.bypass_mode and settles(rollout_correction)
        kl_ctrl = algorithm.kl_ctrl
        self.kl = kl_controller(kl_ctrl.type, kl_ctrl.kl_coef, target=kl_ctrl.target_kl, horizon=kl_ctrl.horizon)

    def __call__(self, batch: Batch) -> dict[str, float]:
        """Set the batch's advantages, and its returns where a critic learns from them; gives metrics.

        They come from its rewards, less the KL to the reference where that belongs to the reward. `values` and
        `baselines` must be there where the estimator reads them.
        """
        algorithm, rewards, metrics = self.algorithm, batch.rewards, {}
        if algorithm.use_kl_in_reward:
            kl = _estimated_kl(batch, algorithm.kl_penalty) if batch.kl is None else batch.kl
            rewards, mean = penalise(rewards, kl, batch.mask, batch.cu_seqlens, coefficient=self.kl.value)
            metrics = {"actor/reward_kl": mean, "actor/reward_kl_coef": self.kl.value}
            self.kl.update(mean, batch.trajectory.unique().numel())
        if self.settles:
            self._settle(batch)
        batch.advantages, batch.returns = estimate(
            algorithm.adv_estimator,
            rewards,
            batch.mask,
            batch.cu_seqlens,
            batch.trajectory,
            batch.group,
            values=batch.values,
            baselines=batch.baselines,
            norm_by_std=algorithm.norm_adv_by_std_in_grpo,
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            config=algorithm,
        )
        if algorithm.mask_truncated_completions and batch.truncated is not None:
            batch.mask = batch.mask & ~batch.truncated[sequence_of(batch.cu_seqlens)]
            batch.advantages = batch.advantages * batch.mask
        return metrics

    def _settle(self, batch: Batch) -> None:
        assert batch.old_logprobs is not None
        found = settled(batch, batch.old_logprobs, self.algorithm.rollout_correction)
        batch.mask, batch.rejected = found.mask, found.rejected
        batch.importance, batch.capped = found.importance, found.capped

    def filtered(self, batch: Batch, step: int) -> Batch:
        """The batch to train on: as it is, or with `use_pf_ppo` as many trajectories drawn from it by their scores.

        One that is drawn twice is two trajectories of its group. The draw depends on the seed and `step` alone.
        """
        if not self.algorithm.use_pf_ppo:
            return batch
        pf_ppo = self.algorithm.pf_ppo
        scores, index = trajectory_scores(batch.rewards, batch.cu_seqlens, batch.trajectory)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        drawn = draw(scores, pf_ppo.reweight_method, weight_pow=pf_ppo.weight_pow, generator=generator).tolist()
        sequences: dict[int, list[int]] = {}
        for sequence, trajectory in enumerate(index.tolist()):
            sequences.setdefault(trajectory, []).append(sequence)
        owners = [number for number, trajectory in enumerate(drawn) for _ in sequences[trajectory]]
        picked = batch.select([sequence for trajectory in drawn for sequence in sequences[trajectory]])
        return replace(picked, trajectory=torch.tensor(owners, dtype=torch.long, device=batch.ids.device))


def _estimated_kl(batch: Batch, kind: str) -> torch.Tensor:
    """Of the policy before the step to the reference, whose log-probs are there by now: f32 [T]."""
    assert batch.old_logprobs is not None
    assert batch.ref_logprobs is not None
    return kl_penalty(batch.old_logprobs, batch.ref_logprobs, kind)
