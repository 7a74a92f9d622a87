"""All that trains, as one process sees it: the policy, and what its update needs beside it.

Invariant: every method is called on every rank, in the same order, with the same whole batch; each rank does its share
and gives the whole answer. So one process and many are the same program.
"""

from pathlib import Path
from typing import Any

from agentrl.config.schema import Config
from agentrl.training import Batch, PolicyActor, device_for, load_model, load_tokenizer, save_pretrained, tune_cpu
from agentrl.training.actor import actor_cut
from agentrl.training.ranks import Ranks
from agentrl.training.reference import Reference


class Learner:
    """Holds the policy and trains it. Raises UserError where model and settings do not fit."""

    def __init__(self, config: Config, ranks: Ranks | None = None) -> None:
        self.config = config
        self.ranks = ranks or Ranks()
        self.device = device_for(config.trainer.device)
        if self.device.type == "cpu":
            tune_cpu()
        self.tokenizer = load_tokenizer(config.model)
        self.module = self._load()
        self.actor: PolicyActor | None = None
        self.reference: Reference | None = None

    def prepare(self, total_steps: int) -> None:
        """Make ready to train for `total_steps` steps in all."""
        algorithm, data = self.config.algorithm, self.config.data
        if algorithm.use_kl_in_reward or self.config.actor.use_kl_loss:
            self.reference = self._reference()
        self.actor = PolicyActor(
            self.module,
            actor=self.config.actor,
            temperature=self.config.rollout.temperature,
            device=self.device,
            total_steps=total_steps,
            max_response_length=data.max_response_length,
            rollout_correction=algorithm.rollout_correction,
        )

    def annotate(self, batch: Batch) -> Batch:
        """The batch with the log-probs that its update will need: before the step, of the reference, or neither."""
        actor, penalised = self._trained(), self.config.algorithm.use_kl_in_reward
        batch = batch.to(self.device)
        if penalised or not actor.single_step(batch):
            batch.old_logprobs = actor.logprobs(batch)[0]
        if self.reference is not None:
            batch.ref_logprobs = self.reference.logprobs(batch)
        return batch

    def update(self, batch: Batch) -> dict[str, float]:
        """Train on the batch, which has its advantages."""
        return self._trained().update(batch)

    def save(self, folder: Path) -> None:
        """Write the policy in Hugging Face format."""
        save_pretrained(self.module, self.tokenizer, folder)

    def state_dict(self) -> dict[str, Any]:
        """All that a restart needs to go on bit for bit."""
        return self._trained().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._trained().load_state_dict(state)

    def _reference(self) -> Reference:
        adapter = hasattr(self.module, "disable_adapter")
        return Reference(
            self.module if adapter else self._load(),
            temperature=self.config.rollout.temperature,
            cut=actor_cut(self.config.actor),
            device=self.device,
        )

    def _load(self) -> Any:
        """The policy as the run begins."""
        return load_model(self.config.model, device=self.device, seed=self.config.trainer.seed)

    def _trained(self) -> PolicyActor:
        if self.actor is None:
            raise RuntimeError("prepare() comes before anything that trains")
        return self.actor
