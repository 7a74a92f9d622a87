"""The policy's update: from a packed batch with advantages to new weights and the figures that describe the step.

Invariants:
- the loss of a mini-batch does not depend on how it is cut into micro-batches;
- with one optimizer step a training step, the policy before the step is the policy in the step: `old_logprobs` may be
  missing, and the ratio is exactly 1;
- sequences that cannot move the weights (advantage 0 throughout, no KL, no entropy) get no backward pass; their
  share in the loss's denominator stays;
- the module is in eval mode outside `update`.
"""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.algorithms import importance_weights, kl_penalty, ppo_clip_loss, token_weights
from agentrl.config.schema import Actor, RolloutCorrection
from agentrl.errors import UserError
from agentrl.training.batch import Batch
from agentrl.training.logprobs import TokenLogprobs
from agentrl.training.optimizer import Optimizer
from agentrl.training.report import Report
from agentrl.training.rng import rng_state, set_rng_state
from agentrl.training.splitting import micro_batches, mini_batches


class PolicyActor:
    """Scores and trains the policy `module` (a causal LM, maybe wrapped by peft), which it shares with the engine."""

    def __init__(
        self,
        module: nn.Module,
        *,
        actor: Actor,
        temperature: float,
        device: torch.device,
        total_steps: int,
        reference: bool = False,
        max_response_length: int | None = None,
        rollout_correction: RolloutCorrection | None = None,
    ) -> None:
        """`total_steps`: training steps of the whole run, for the schedule. `reference`: `ref_logprobs` will be
        asked for, even without `actor.use_kl_loss`; the reference is the policy as it is now, so it must be built
        before a checkpoint is loaded. `max_response_length`: the divisor of seq-mean-token-sum-norm.
        `rollout_correction`: how tokens are weighted for having been drawn by the engine; None: not at all.
        """
        if actor.loss_agg_mode == "seq-mean-token-sum-norm" and not max_response_length:
            raise UserError("actor.loss_agg_mode seq-mean-token-sum-norm needs data.max_response_length")
        self.module: Any = module
        self.actor = actor
        self.device = device
        self.rollout_correction = rollout_correction or RolloutCorrection(rollout_is=None)
        self.max_response_length = max_response_length or 1
        self.score = TokenLogprobs(module, temperature=temperature)
        self.optimizer = Optimizer(module, actor.optim, grad_clip=actor.grad_clip, total_steps=total_steps)
        self.shuffling = torch.Generator().manual_seed(actor.data_loader_seed)
        self._adapter = hasattr(module, "disable_adapter")
        self._reference: TokenLogprobs | None = None
        if (reference or actor.use_kl_loss) and not self._adapter:
            frozen = copy.deepcopy(module).requires_grad_(False).eval()
            self._reference = TokenLogprobs(frozen, temperature=temperature)

    def logprobs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(log-probs f32 [T], entropies f32 [T]) of the model's tokens under the current weights; 0 off the mask."""
        return self._scored(self.score, batch)

    def ref_logprobs(self, batch: Batch) -> Tensor:
        """Log-probs f32 [T] under the policy that the run began with: the base model, with LoRA."""
        if self._adapter:
            with self.module.disable_adapter():
                return self._scored(self.score, batch)[0]
        if self._reference is None:
            raise RuntimeError("the actor was built without a reference policy")
        return self._scored(self._reference, batch)[0]

    def single_step(self, batch: Batch) -> bool:
        """Whether `update` makes one optimizer step: then `old_logprobs` are not needed."""
        return self.actor.ppo_epochs == 1 and len(mini_batches(batch, self.actor.ppo_mini_batch_size)) <= 1

    def update(self, batch: Batch) -> dict[str, float]:
        """Train on a batch with advantages, and with `ref_logprobs` where `actor.use_kl_loss` is on; gives metrics.

        Missing `old_logprobs` are computed where more than one optimizer step needs them. A batch without sequences
        moves nothing but the schedule.
        """
        batch = batch.to(self.device)
        if batch.advantages is None:
            raise ValueError("the batch has no advantages")
        if batch.old_logprobs is None and not self.single_step(batch):
            batch = replace(batch, old_logprobs=self.logprobs(batch)[0])
        report = Report(batch, lr=self.optimizer.lr)
        self.module.train()
        for _ in range(self.actor.ppo_epochs):
            generator = self.shuffling if self.actor.shuffle else None
            for rows in mini_batches(batch, self.actor.ppo_mini_batch_size, generator=generator):
                self._mini_step(batch.select(rows), report)
        self.module.eval()
        self.optimizer.advance()
        return report.metrics()

    def state_dict(self) -> dict[str, Any]:
        """All that bit-for-bit continuation needs: trainable parameters, optimizer, schedule, random generators."""
        parameters = {n: p.detach().clone() for n, p in self.module.named_parameters() if p.requires_grad}
        return {
            "parameters": parameters,
            "optimizer": self.optimizer.state_dict(),
            "shuffling": self.shuffling.get_state(),
            "rng": rng_state(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; parameters are written in place. Raises UserError when it is of another model."""
        mine = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        saved = state["parameters"]
        if mine.keys() != saved.keys() or any(mine[n].shape != saved[n].shape for n in mine):
            raise UserError("the checkpoint is of another model or LoRA rank; set trainer.resume_mode=disable")
        for name, parameter in mine.items():
            parameter.copy_(saved[name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.shuffling.set_state(state["shuffling"])
        set_rng_state(state["rng"])

    def _mini_step(self, mini: Batch, report: Report) -> None:
        mini.weights = token_weights(
            mini.mask,
            mini.cu_seqlens,
            self.actor.loss_agg_mode,
            trajectory=mini.trajectory,
            norm=self.max_response_length,
        )
        teaching, silent = self._teaching(mini)
        for rows in self._passes(mini, teaching):
            micro = mini.select(rows)
            self._loss(micro, report).backward()
        for rows in self._passes(mini, silent):
            with torch.no_grad():
                self._loss(mini.select(rows), report)
        report.optimizer_step(self.optimizer.step() if teaching else 0.0)

    def _loss(self, micro: Batch, report: Report) -> Tensor:
        """This micro-batch's part of the mini-batch's loss: a scalar."""
        actor = self.actor
        assert micro.advantages is not None
        assert micro.weights is not None
        logprobs, entropy = self.score(micro)
        old = logprobs.detach() if micro.old_logprobs is None else micro.old_logprobs
        losses, details = ppo_clip_loss(
            logprobs,
            old,
            micro.advantages,
            low=actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low,
            high=actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high,
            c=actor.clip_ratio_c,
        )
        losses = self._corrected(losses, old, micro, details)
        details |= {"pg_loss": losses, "entropy": entropy, "old": old, "logprobs": logprobs}
        if actor.entropy_coeff != 0:
            losses = losses - actor.entropy_coeff * entropy
        if actor.use_kl_loss:
            if micro.ref_logprobs is None:
                raise ValueError("actor.use_kl_loss needs ref_logprobs in the batch")
            details["kl_loss"] = kl_penalty(logprobs, micro.ref_logprobs, actor.kl_loss_type)
            losses = losses + actor.kl_loss_coef * details["kl_loss"]
        report.micro_batch(micro, details)
        return (losses * micro.weights).sum()

    def _corrected(self, losses: Tensor, old: Tensor, micro: Batch, details: dict[str, Tensor]) -> Tensor:
        """The losses, weighted as `rollout_correction` says."""
        rollout_correction = self.rollout_correction
        if rollout_correction.rollout_is is None:
            return losses
        weights, capped = importance_weights(
            old,
            micro.rollout_logprobs,
            micro.mask,
            micro.cu_seqlens,
            level=rollout_correction.rollout_is,
            cap=rollout_correction.rollout_is_threshold,
            mode=rollout_correction.rollout_is_mode,
        )
        details |= {"rollout_is": weights, "rollout_is_capped": capped}
        return losses * weights

    def _teaching(self, mini: Batch) -> tuple[list[int], list[int]]:
        """Sequences whose loss has a gradient, and those whose has none."""
        everything = list(range(mini.num_sequences))
        if self.actor.use_kl_loss or self.actor.entropy_coeff != 0:
            return everything, []
        assert mini.advantages is not None
        per_sequence = (mini.advantages * mini.mask).split(mini.lengths)
        teaches = [bool(advantages.count_nonzero()) for advantages in per_sequence]
        return [i for i in everything if teaches[i]], [i for i in everything if not teaches[i]]

    def _passes(self, batch: Batch, sequences: list[int]) -> list[list[int]]:
        """Cut the given sequences of a batch into forward passes, each a list of the batch's sequence indices."""
        actor = self.actor
        lengths = batch.lengths
        cut = micro_batches(
            [lengths[i] for i in sequences],
            max_tokens=actor.ppo_max_token_len_per_gpu if actor.use_dynamic_bsz else None,
            max_sequences=actor.ppo_micro_batch_size_per_gpu,
        )
        return [[sequences[i] for i in rows] for rows in cut]

    @torch.no_grad()
    def _scored(self, score: TokenLogprobs, batch: Batch) -> tuple[Tensor, Tensor]:
        batch = batch.to(self.device)
        logprobs = torch.zeros(batch.num_tokens, dtype=torch.float32, device=self.device)
        entropy = torch.zeros_like(logprobs)
        for rows in self._passes(batch, list(range(batch.num_sequences))):
            tokens = batch.tokens_of(rows)
            logprobs[tokens], entropy[tokens] = score(batch.select(rows))
        return logprobs, entropy
