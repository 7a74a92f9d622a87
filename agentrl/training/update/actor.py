"""The policy's update: a packed batch with advantages in, new weights and metrics out.

Invariants:
- with one optimizer step per training step, the policy before the step equals the policy in the step: `old_logprobs`
  may be missing, and the ratio is exactly 1;
- with a built-in loss, no KL loss and no entropy term, sequences of advantage 0 get no backward pass.
"""

import logging
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.algorithms import OptimizerStep, bind_loss, kl_penalty
from agentrl.algorithms.kl import GRADIENT
from agentrl.algorithms.ratios import ratio_of
from agentrl.algorithms.segments import sequence_of, sum_by
from agentrl.config.schema import Actor, RolloutCorrection
from agentrl.core.errors import UserError
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.dealing import Layout, choose_tokens, prompts_of
from agentrl.training.checkpoint.rng import rng_state, set_rng_state
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.parallel.ranks import ALONE, Ranks
from agentrl.training.roles.frozen import Reference
from agentrl.training.update.early_gradients import EarlyGradients
from agentrl.training.update.micro_batches import for_ranks, micro_batching_of, score_batch
from agentrl.training.update.objective import loss_of
from agentrl.training.update.off_policy import (
    correct_batch,
    loss_has_ratio,
    micro_batch_importance,
    needs_batch_correction,
)
from agentrl.training.update.optimizer import Optimizer
from agentrl.training.update.report import PolicyReport
from agentrl.training.update.trainable import Split, Steps, Trainable

MOST_WAITS = 64
"""Updates that are not begun early after many in a row that were begun in vain."""

log = logging.getLogger(__name__)


class PolicyActor(Trainable):
    """Computes log-probs of the policy `module` (a causal LM, maybe with peft) and trains it."""

    def __init__(
        self,
        module: nn.Module,
        *,
        actor: Actor,
        temperature: float,
        device: torch.device,
        total_steps: int,
        max_response_length: int | None = None,
        rollout_correction: RolloutCorrection | None = None,
        reference: Reference | None = None,
        ranks: Ranks = ALONE,
        shares: bool = False,
        seed: int = 0,
    ) -> None:
        """Shares `module`; does not copy it.

        `total_steps`: training steps of the whole run, for the schedule. `max_response_length`: the divisor of
        seq-mean-token-sum-norm. `rollout_correction`: importance weights of the engine's tokens; None: no weights.
        `reference`: for a KL loss over the whole vocabulary (`actor.kl_loss_type=full`). `ranks`: `module` is sharded
        over them. `shares`: passes compute equal prompts once. `seed`: `trainer.seed`.
        """
        divisor = actor.loss_scale_factor or max_response_length
        if actor.loss_agg_mode == "seq-mean-token-sum-norm" and not divisor:
            raise UserError("actor.loss_agg_mode seq-mean-token-sum-norm needs data.max_response_length")
        sizes = replace(micro_batching_of(actor, device), shares=shares)
        super().__init__(
            module,
            optimizer=Optimizer(
                module,
                actor.optim,
                grad_clip=actor.grad_clip,
                total_steps=total_steps,
                ranks=ranks,
                offload=actor.fsdp_config.optimizer_offload,
            ),
            micro_batching=for_ranks(sizes, module, ranks=ranks),
            steps=Steps(actor.ppo_mini_batch_size, actor.ppo_epochs, actor.shuffle, seed),
            device=device,
        )
        self.actor = actor
        self.rollout_correction = rollout_correction or RolloutCorrection(rollout_is=None)
        self.divisor = divisor or 1
        self.reference = reference
        self.policy_loss = loss_of(actor)
        if self.rollout_correction.bypass_mode and not loss_has_ratio(self.rollout_correction):
            self.policy_loss = bind_loss("gpg")
        self.step: OptimizerStep | None = None
        self.early: EarlyGradients | None = None
        """What the next update uses."""
        self.used: EarlyGradients | None = None
        """What the last one used."""
        self.refused = False
        """Whether the last update was another than the one that was begun."""
        self._refusals = self._waits = 0
        self._warned = False
        self.score = TokenLogprobs(module, temperature=temperature)

    def logprobs(self, batch: Batch, reference: Reference | None = None) -> tuple[Tensor, ...]:
        """(log-probs f32 [T], entropies f32 [T]) of the model's tokens under the current weights; 0 off the mask.

        With a `reference`, a third column is the exact KL to it.
        """

        def score(micro: Batch) -> tuple[Tensor, ...]:
            return self.score(micro, other=reference.readout(micro) if reference else None)

        with reference.on_device() if reference else nullcontext():
            columns = score_batch(score, batch.to(self.device), self.micro_batching, columns=3 if reference else 2)
        return tuple(columns)

    def single_step(self, prompts: int) -> bool:
        """Whether `update` takes one optimizer step for a batch of so many prompts, and needs no `old_logprobs`."""
        once = self.actor.ppo_epochs == 1 and prompts <= self.actor.ppo_mini_batch_size
        return once and not self.policy_loss.chooses and not needs_batch_correction(self.rollout_correction)

    def adds_up(self, prompts: int) -> bool:
        """Whether `update` of so many prompts is one sum over their sequences, which may be begun early."""
        alone = self.micro_batching.ranks.seq_world == 1 and not self.optimizer.scale.needed and self.reference is None
        return alone and not self._waits and self.single_step(prompts) and not self.policy_loss.reads_sizes

    def begin(self, part: Batch) -> float:
        """Compute the gradients of whole groups that the next `update` is expected to train on; see `adds_up`. Returns
        the FLOPs."""
        early, self.early = self.early or EarlyGradients(self._report(part), self.micro_batching.ranks), None
        part = part.to(self.device)
        flops = self.flops(part)
        factor = early.add(part, self.policy_loss.aggregation(self.actor.loss_agg_mode), self.divisor)
        self.optimizer.scale_gradients(factor)
        early.report.rescale(factor)
        with self.training():
            ran = self.run_passes(part, *self.split_by_gradient(part), early.report)
        if ran:
            early.flops += flops
            self.early = early
        return flops if ran else 0.0

    def left(self, mini: Batch, whole: Split, report: Any) -> Split:
        early, self.early = self.early, None
        found = None if early is None else early.found_in(mini)
        self.used, self.refused = (early if isinstance(found, tuple) else None), isinstance(found, str)
        if early is None or not isinstance(found, tuple):
            if isinstance(found, str):
                self._refuse(found)
            self.clear_gradients()
            return whole
        self._refusals = 0
        rows, factor = found
        self.optimizer.scale_gradients(factor)
        report.absorb(early.report, factor)
        trained, others = ([i for i in part if i not in rows] for part in whole)
        return trained, others

    def _refuse(self, why: str) -> None:
        """Begin no update early for some steps, twice as many after each that was begun in vain."""
        self._refusals += 1
        self._waits = min(2 ** (self._refusals - 1), MOST_WAITS)
        if self.micro_batching.ranks.first and not self._warned:
            log.warning("an update that was begun early is computed again: %s (perf/early_refused counts further)", why)
        self._warned = True

    def update(self, batch: Batch) -> dict[str, float]:
        """Train on a batch with advantages (and `ref_logprobs` for an estimated KL loss); returns metrics.

        Missing `old_logprobs` are computed unless `single_step`. A batch without sequences only advances the schedule.
        Raises ValueError for a missing column.
        """
        batch = batch.to(self.device)
        if batch.advantages is None:
            raise ValueError("the batch has no advantages")
        self._waits = max(self._waits - 1, 0)
        ranks = self.micro_batching.ranks
        if batch.old_logprobs is None and not self.single_step(len(prompts_of(batch, ranks))):
            batch = replace(batch, old_logprobs=self.logprobs(batch)[0])
        report = self._report(batch)
        with self.reference.on_device() if self.reference else nullcontext():
            self.train_on(batch, report)
        return report.metrics()

    def _report(self, batch: Batch) -> PolicyReport:
        ranks, scale = self.micro_batching.ranks, self.optimizer.loss_scale
        return PolicyReport(batch, lr=self.optimizer.lr, ranks=ranks, loss_scale=scale)

    def flops(self, batch: Batch) -> float:
        """FLOPs of the policy, and of the reference where the update runs it, of this rank's share."""
        corrects_here = self.rollout_correction.bypass_mode and needs_batch_correction(self.rollout_correction)
        extra = bool(self.reference) + corrects_here
        beside = self.cost.forward(*self.work(batch)) if extra else 0.0
        return super().flops(batch) + self.steps.epochs * extra * beside

    def state_dict(self) -> dict[str, Any]:
        """State for an exact resume: that of a Trainable, and the random generators."""
        return super().state_dict() | {"rng": rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint. Raises UserError when it is of another model."""
        super().load_state_dict(state)
        if "rng" in state:
            set_rng_state(state["rng"])

    def prepare_mini_batch(self, mini: Batch) -> Batch:
        """With `bypass_mode`, correct each mini-batch by the policy's current log-probs."""
        if not (self.rollout_correction.bypass_mode and needs_batch_correction(self.rollout_correction)):
            return mini
        self.module.eval()
        logprobs = self.logprobs(mini)[0]
        self.module.train()
        return correct_batch(mini, logprobs, self.rollout_correction, self.micro_batching.ranks.total)

    def loss_weights(self, mini: Batch) -> Tensor:
        """Each token's weight in the loss, f32 [T]. Also chooses the tokens of losses that treat some differently."""
        ranks = self.micro_batching.ranks
        if self.policy_loss.chooses:
            mini.chosen = choose_tokens(self.policy_loss, mini, self.shuffling, ranks)
        self.step = OptimizerStep.of(mini.mask, mini.cu_seqlens, self.divisor, ranks.total)
        return self.token_weights(mini, self.policy_loss.aggregation(self.actor.loss_agg_mode), self.divisor)

    def loss(self, micro: Batch, report: PolicyReport) -> Tensor:
        """The micro-batch's part of the mini-batch's loss: a scalar."""
        actor = self.actor
        assert micro.advantages is not None
        assert micro.weights is not None
        other = self.reference.readout(micro) if self.reference else None
        logprobs, entropy, *exact = self.score(micro, other=other)
        old = logprobs.detach() if micro.old_logprobs is None else micro.old_logprobs
        drawn_by = logprobs.detach() if self.rollout_correction.bypass_mode else old
        importance, capped = micro_batch_importance(micro, drawn_by, self.rollout_correction)
        losses, details = self.policy_loss(
            logprobs,
            old,
            micro.advantages,
            mask=micro.mask,
            cu_seqlens=micro.cu_seqlens,
            chosen=micro.chosen,
            weights=micro.weights,
            importance=importance,
            step=self.step,
        )
        if importance is not None and capped is not None:
            details |= {"rollout_is": importance, "rollout_is_capped": capped}
            losses = losses if self.policy_loss.corrects else losses * importance
        details |= {"pg_loss": losses, "entropy": entropy, "old": old, "logprobs": logprobs}
        drawn, sampled = self._importance_of_terms(logprobs, old, importance)
        if actor.entropy_coeff != 0:
            losses = losses - actor.entropy_coeff * drawn * entropy
        if actor.use_kl_loss:
            details["kl_loss"] = drawn * exact[0] if exact else sampled * self._estimated_kl(logprobs, micro)
            losses = losses + actor.kl_loss_coef * details["kl_loss"]
        report.micro_batch(micro, details)
        return (losses * micro.weights).sum()

    def _importance_of_terms(
        self, logprobs: Tensor, old: Tensor, importance: Tensor | None
    ) -> tuple[Tensor | float, Tensor | float]:
        """Factors of terms that follow from a token's context (entropy, exact KL), and of an estimate from the token.

        The estimate's expectation under the policy needs the policy's own ratio, with its gradient where the estimator
        does not stand for the gradient already.
        """
        if not self.rollout_correction.rollout_is_all_terms:
            return 1.0, 1.0
        drawn = 1.0 if importance is None else importance
        ratio = ratio_of(logprobs, old)
        ratio = ratio.detach() if self.actor.kl_loss_type.endswith(GRADIENT) else ratio
        return drawn, ratio if self.rollout_correction.bypass_mode else ratio * drawn

    def _estimated_kl(self, logprobs: Tensor, micro: Batch) -> Tensor:
        if micro.ref_logprobs is None:
            raise ValueError("actor.use_kl_loss needs ref_logprobs in the batch")
        return kl_penalty(logprobs, micro.ref_logprobs, self.actor.kl_loss_type, "actor.kl_loss_type")

    def moves(self, layout: Layout, sequence: int) -> bool:
        return self._all_move or not layout.still[sequence]

    @property
    def _all_move(self) -> bool:
        """Whether sequences of advantage 0 have a gradient too."""
        return self.actor.use_kl_loss or self.actor.entropy_coeff != 0 or not self.policy_loss.built_in

    def split_by_gradient(self, mini: Batch) -> Split:
        """(sequences whose loss has a gradient, the others)."""
        everything = list(range(mini.num_sequences))
        if self._all_move:
            return everything, []
        assert mini.advantages is not None
        moving = (mini.advantages != 0) & mini.mask
        if mini.chosen is not None:
            moving = moving | mini.chosen  # their penalty has a gradient even with advantage 0
        counts = sum_by(moving.long(), sequence_of(mini.cu_seqlens), mini.num_sequences).tolist()
        return [i for i in everything if counts[i]], [i for i in everything if not counts[i]]
