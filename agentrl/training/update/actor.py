"""The policy's update: a packed batch with advantages in, new weights and metrics out.

Invariants:
- with one optimizer step per training step, the policy before the step equals the policy in the step: `old_logprobs`
  may be missing, and the ratio is exactly 1;
- with a built-in loss, no KL loss and no entropy term, sequences of advantage 0 get no backward pass.
"""

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from agentrl.algorithms import bind_loss
from agentrl.algorithms.kl import GRADIENT, kl_of_logits, kl_penalty
from agentrl.algorithms.losses import OptimizerStep, PolicyLoss
from agentrl.algorithms.ratios import ratio_of
from agentrl.config.schema import Actor, RolloutCorrection
from agentrl.core.errors import UserError
from agentrl.core.points import POLICY_LOSS_OPTIONS
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.outline import choose_tokens, prompts_of
from agentrl.training.checkpoint.rng import rng_state, set_rng_state
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.chunked import Compare, joined
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.roles.frozen import Reference
from agentrl.training.update import off_policy
from agentrl.training.update.distillation import Distiller
from agentrl.training.update.early_gradients import EarlyAccumulation
from agentrl.training.update.micro_batches import score_batch
from agentrl.training.update.report import Figures, PolicyReport
from agentrl.training.update.trainable import RunFacts, Split, Trainable, settled


class PolicyActor(Trainable):
    """Computes log-probs of the policy (a causal LM, maybe with peft) and trains it."""

    score: TokenLogprobs

    def __init__(
        self,
        model: nn.Module | ModelHandle,
        *,
        actor: Actor,
        temperature: float,
        max_response_length: int | None = None,
        rollout_correction: RolloutCorrection | None = None,
        reference: Reference | None = None,
        distiller: Distiller | None = None,
        shares: bool = False,
        **run: Unpack[RunFacts],
    ) -> None:
        """Shares `model`; does not copy it.

        `run`: see `RunFacts`. `max_response_length`: the divisor of
        seq-mean-token-sum-norm. `rollout_correction`: importance weights of the engine's tokens; None: no weights.
        `reference`: for a KL loss over the whole vocabulary (`actor.kl_loss_type=full`). `distiller`: of a run with
        teachers. `shares`: passes compute equal prompts once.
        """
        divisor = actor.loss_scale_factor or max_response_length
        if actor.loss_agg_mode == "seq-mean-token-sum-norm" and not divisor:
            raise UserError("actor.loss_agg_mode seq-mean-token-sum-norm needs data.max_response_length")
        model = ModelHandle.of(model)
        parts = settled(actor, "actor", model, **run)
        super().__init__(model, router=actor.router, **parts)
        self.micro_batching = replace(self.micro_batching, shares=shares)
        self.actor = actor
        self.rollout_correction = rollout_correction or RolloutCorrection(rollout_is=None)
        self.divisor = divisor or 1
        self.reference, self.distiller = reference, distiller
        self.policy_loss = loss_of(actor)
        if self.rollout_correction.bypass_mode and not off_policy.loss_has_ratio(self.rollout_correction):
            self.policy_loss = bind_loss("gpg")
        terms = actor.use_kl_loss or actor.entropy_coeff != 0 or actor.router.aux_loss_coef != 0
        self.by_advantage = self.policy_loss.entry.built_in and distiller is None and not terms
        self.step: OptimizerStep | None = None
        self.early = EarlyAccumulation(self, self._aggregation, self.divisor)
        self.score = TokenLogprobs(model, temperature=temperature)

    def logprobs(self, batch: Batch, reference: Reference | None = None) -> tuple[Tensor, ...]:
        """(log-probs f32 [T], entropies f32 [T]) of the model's tokens under the current weights; 0 off the mask.

        With a `reference`, a third column is the exact KL to it.
        """

        routing, recorded = self.model.routing, batch.experts is None
        if routing is not None and recorded:
            batch.experts = routing.unknown(batch.num_tokens)

        def score(micro: Batch) -> tuple[Tensor, ...]:
            return self.score(micro, compare=_exact_kl(reference, micro) if reference else None)

        with reference.on_device() if reference else nullcontext():
            columns = score_batch(score, batch.to(self.device), self.micro_batching, columns=3 if reference else 2)
        if routing is not None and recorded:
            routing.counts.zero_()
        return tuple(columns)

    def single_step(self, prompts: int) -> bool:
        """Whether `update` takes one optimizer step for a batch of so many prompts, and needs no `old_logprobs`."""
        once = self.actor.ppo_epochs == 1 and prompts <= self.actor.ppo_mini_batch_size
        return once and not self.policy_loss.chooses and not off_policy.needs_batch_correction(self.rollout_correction)

    def is_additive(self, prompts: int) -> bool:
        """Whether `update` of so many prompts is one sum over their sequences, so that parts of it may come early."""
        alone = self.micro_batching.ranks.seq_world == 1 and not self.optimizer.scale.needed and self.reference is None
        alone = alone and (self.distiller is None or self.distiller.ranks is None)
        alone = alone and not self.actor.router.aux_loss_coef  # its passes have shares of the whole mini-batch
        return alone and self.single_step(prompts) and not self.policy_loss.reads_sizes

    def remaining_sequences(self, mini: Batch, whole: Split, report: Any) -> Split:
        return self.early.remaining_sequences(mini, whole, report)

    def update(self, batch: Batch) -> dict[str, float]:
        """Train on a batch with advantages (and `ref_logprobs` for an estimated KL loss); returns metrics.

        Missing `old_logprobs` are computed unless `single_step`. A batch without sequences only advances the schedule.
        Raises ValueError for a missing column.
        """
        batch = batch.to(self.device)
        ranks = self.micro_batching.ranks
        if batch.old_logprobs is None and not self.single_step(len(prompts_of(batch, ranks))):
            batch = replace(batch, old_logprobs=self.logprobs(batch)[0])
        report = PolicyReport(batch, self.optimizer)
        compared = [self.reference] if self.reference else []
        with ExitStack() as loaded:
            for model in (*compared, *(self.distiller.compared if self.distiller else ())):
                loaded.enter_context(model.on_device())
            report = self.train_on(batch, report)
        routing = self.model.routing
        replayed = {} if routing is None else routing.take_metrics(ranks)
        return report.metrics() | self.load.metrics() | replayed

    def state_dict(self) -> dict[str, Any]:
        """State for an exact resume: that of a Trainable, and the random generators."""
        return super().state_dict() | {"rng": rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint. Raises UserError when it is of another model."""
        super().load_state_dict(state)
        if "rng" in state:
            set_rng_state(state["rng"])

    def prepare_mini_batch(self, mini: Batch) -> Batch:
        """Correct the mini-batch, where mini-batches are corrected."""
        if not self._corrects_mini_batches:
            return mini
        self.model.module.eval()
        logprobs = self.logprobs(mini)[0]
        self.model.train()
        total = self.micro_batching.ranks.sum_over_ranks
        return off_policy.correct_batch(mini, logprobs, self.rollout_correction, total)

    @property
    def _corrects_mini_batches(self) -> bool:
        """Whether each mini-batch is corrected as a whole, by the policy's current log-probs."""
        return self.rollout_correction.bypass_mode and off_policy.needs_batch_correction(self.rollout_correction)

    @property
    def _aggregation(self) -> str:
        return self.policy_loss.aggregation(self.actor.loss_agg_mode)

    def loss_weights(self, mini: Batch) -> Tensor:
        """Each token's weight in the loss, f32 [T]. Also chooses the tokens of losses that treat some differently."""
        ranks = self.micro_batching.ranks
        if self.policy_loss.chooses:
            mini.chosen = choose_tokens(self.policy_loss, mini, self.shuffling, ranks)
        self.step = OptimizerStep.of(mini.mask, mini.cu_seqlens, self.divisor, ranks.sum_over_ranks)
        return self.token_weights(mini, self._aggregation, self.divisor)

    def loss(self, micro: Batch, report: PolicyReport) -> Tensor:
        """The micro-batch's part of the mini-batch's loss: a scalar."""
        actor = self.actor
        exact_kl = _exact_kl(self.reference, micro) if self.reference else None
        compare = self.distiller.compare(micro) if self.distiller and micro.teacher is not None else None
        self.load.begin_pass(micro.mask)
        logprobs, entropy, *figures = self.score(micro, compare=joined(exact_kl, compare))
        exact = [figures.pop(0)] if exact_kl else []
        old = logprobs.detach() if micro.old_logprobs is None else micro.old_logprobs
        drawn_by = logprobs.detach() if self.rollout_correction.bypass_mode else old
        importance, capped = off_policy.batch_importance(micro, drawn_by, self.rollout_correction)
        advantages, distance, distilled = self._distilled(micro, logprobs, figures)
        losses, details = self.policy_loss(
            logprobs,
            old,
            advantages,
            mask=micro.mask,
            cu_seqlens=micro.cu_seqlens,
            chosen=micro.chosen,
            weights=micro.weights,
            importance=importance,
            step=self.step,
        )
        if importance is not None and capped is not None:
            details |= {"rollout_is/mean": importance, "rollout_is/capped": capped}
            losses = losses if self.policy_loss.corrects else losses * importance
        details |= {"pg_loss": losses, "entropy": entropy, "old": old, "logprobs": logprobs}
        drawn, sampled = self._importance_of_terms(logprobs, old, importance)
        if actor.entropy_coeff != 0:
            losses = losses - actor.entropy_coeff * drawn * entropy
        if actor.use_kl_loss:
            details["kl_loss"] = drawn * exact[0] if exact else sampled * self._estimated_kl(logprobs, micro)
            losses = losses + actor.kl_loss_coef * details["kl_loss"]
        if distance is not None:
            losses = losses + (distance if importance is None else distance * importance)
        report.micro_batch(micro, details, distilled)
        balance = self.load.loss(micro.num_tokens, micro.mask.sum() / self.step.tokens) if self.step else 0.0
        return (losses * micro.column("weights")).sum() + balance

    def _distilled(
        self, micro: Batch, logprobs: Tensor, figures: list[Tensor]
    ) -> tuple[Tensor, Tensor | None, list[Figures]]:
        """(advantages, the distance to teachers as a term of the loss, what is reported of it)."""
        advantages = micro.column("advantages")
        if self.distiller is None or micro.teacher is None:
            return advantages, None, []
        distillation = self.distiller.distillation
        distance, distilled = self.distiller.columns(micro, logprobs, figures)
        advantages = advantages if distillation.use_rewards else torch.zeros_like(advantages)
        if not distillation.reward:
            return advantages, distillation.coef * distance, distilled
        return advantages - distillation.coef * distance.detach(), None, distilled

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
        return kl_penalty(logprobs, micro.column("ref_logprobs"), self.actor.kl_loss_type, "actor.kl_loss_type")


def _exact_kl(reference: Reference, micro: Batch) -> Compare:
    logits = reference.logits(micro)
    return lambda own, tokens: kl_of_logits(own, logits(tokens))[None]


def loss_of(actor: Actor) -> PolicyLoss:
    """The loss that the settings name, with all that any loss may ask for. Raises UserError for an unknown one."""
    return bind_loss(
        actor.policy_loss.loss_mode,
        low=actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low,
        high=actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high,
        c=actor.clip_ratio_c,
        config=actor,
        **POLICY_LOSS_OPTIONS | actor.policy_loss.options,
    )
