"""The models of a run in their roles, from its settings: the policy's weights, its actor, its reference, its critic.

Each role that is sharded is made by all ranks together, in the same order.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from agentrl.config.derived import changed_distribution, full_kl_in, inherited
from agentrl.config.schema import Config, Model, Teacher
from agentrl.config.schema.fsdp import FsdpConfig
from agentrl.core.errors import UserError
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.loading import float32_masters, freeze_vision_tower, load_model
from agentrl.training.model.routing_probe import routing_of
from agentrl.training.model.value_model import load_value_model
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.sharding import Load, load_on_ranks, match_trained_precision
from agentrl.training.perf.compiled_block import compiles
from agentrl.training.roles.frozen import Reference
from agentrl.training.roles.teachers import RankTeachers
from agentrl.training.update.actor import PolicyActor
from agentrl.training.update.critic import ValueCritic
from agentrl.training.update.distillation import Distiller
from agentrl.training.update.expert_load import freeze_routers
from agentrl.training.update.micro_batches import check_shares, for_ranks, micro_batching_of, shares_by_default


@dataclass(frozen=True)
class Roles:
    """Makes the models of one process. Its methods raise UserError where model and settings do not fit."""

    config: Config
    device: torch.device
    ranks: Ranks

    def policy(self) -> ModelHandle:
        """The policy's initial weights, in float32 where they are trained."""
        model = self._load(self.config.actor.fsdp_config, trained=not self.config.trainer.val_only)
        if (mode := self.config.actor.router_replay.mode) != "disabled":
            model.routing = routing_of(model, self.device, f"actor.router_replay.mode={mode}")
        return model

    def actor(
        self, model: ModelHandle, reference: Reference | None, distiller: Distiller | None, total_steps: int
    ) -> PolicyActor:
        """The actor of the policy."""
        config = self.config
        cut = changed_distribution(config.rollout)
        return PolicyActor(
            model,
            actor=config.actor,
            temperature=self._temperature,
            rollout_correction=None if cut else config.algorithm.rollout_correction,
            reference=reference if full_kl_in(config) == "loss" else None,
            distiller=distiller,
            shares=self.shares(model),
            **self._for_training(total_steps),
        )

    def _for_training(self, total_steps: int) -> dict[str, Any]:
        """Arguments of actor and critic."""
        length, seed = self.config.data.max_response_length, self.config.trainer.seed
        common = {"device": self.device, "ranks": self.ranks, "seed": seed}
        return common | {"total_steps": total_steps, "max_response_length": length}

    def reference(self, policy: ModelHandle) -> Reference:
        """The reference: initial weights again, or the policy without its adapter."""
        ref = self.config.ref
        if policy.adapted and ref.update_freq > 0:
            raise UserError("ref.update_freq: the reference is the model without its adapter, which never changes")
        return self._frozen(policy, ref.fsdp_config.param_offload)

    def distiller(self, policy: ModelHandle) -> Distiller | None:
        """The comparison with teachers, and those that the ranks hold; None without teachers."""
        if not self.config.teachers:
            return None
        held = {i: each for i, each in enumerate(self.config.teachers.values()) if each.on_ranks}
        models = {i: self._teacher(each, policy) for i, each in held.items()}
        ema = {i: each.ema for i, each in held.items() if each.ema is not None}
        return Distiller(self.config.distillation, RankTeachers(models, ema) if held else None)

    def _teacher(self, teacher: Teacher, policy: ModelHandle) -> Reference:
        if teacher.path:
            network = replace(self.config.model, path=teacher.path, lora_rank=0, override_config={})
            return self._frozen(policy, teacher.param_offload, network)
        return self._frozen(policy, teacher.param_offload, as_is=teacher.model == "policy" and teacher.ema is None)

    def _frozen(
        self, policy: ModelHandle, offload: bool, network: Model | None = None, *, as_is: bool = False
    ) -> Reference:
        """A model that is not trained: `network`, else the policy's initial weights, or `as_is` the policy."""
        own = self.config.actor.fsdp_config
        # It has no backward pass.
        sharded = replace(own, offload_policy=offload or own.offload_policy, reshard_after_forward=True)
        sizes = replace(micro_batching_of(self.config.actor, self.device), shares=self.shares(policy))
        model = policy
        if network is not None:
            model = match_trained_precision(self._other(network, sharded))
        elif not (as_is or policy.adapted):
            model = match_trained_precision(self._load(sharded))
        return Reference(
            model,
            temperature=self._temperature,
            micro_batching=for_ranks(sizes, model, ranks=self.ranks),
            device=self.device,
            offload=offload and self.ranks.mesh is None,
            as_is=as_is or network is not None,
        )

    def _other(self, network: Model, fsdp_config: FsdpConfig) -> ModelHandle:
        """Another model than the policy: its experts, if any, are not split."""
        roles = replace(self, ranks=replace(self.ranks, expert_mesh=None))
        seed = self.config.trainer.seed
        return roles._load_on_ranks(lambda device: load_model(network, device=device, seed=seed), fsdp_config)

    def critic(self, total_steps: int) -> ValueCritic:
        """The critic, from `critic.model.path` or from the policy's initial weights."""
        critic, actor = self.config.critic, self.config.actor
        network = inherited(critic.model, self.config.model)
        own = network.path != self.config.model.path  # then it may have no experts
        roles = replace(self, ranks=replace(self.ranks, expert_mesh=None)) if own else self
        seed, sharding = self.config.trainer.seed, actor.fsdp_config
        model = roles._load_on_ranks(lambda device: load_value_model(network, device=device, seed=seed), sharding)
        given = self._for_training(total_steps)
        return ValueCritic(model, critic=critic, actor=actor, vf_coef=self.config.algorithm.vf_coef, **given)

    def shares(self, model: ModelHandle) -> bool:
        """Whether the policy's passes compute equal prompts once. Raises UserError where they shall and cannot."""
        chosen = self.config.actor.share_prompts
        if chosen is None:
            return self.config.rollout.n > 1 and shares_by_default(model, self.device, self.ranks)
        if chosen:
            check_shares(model, self.device, self.ranks)
        return chosen

    def compiles(self) -> bool:
        """Whether blocks are compiled."""
        return compiles(self.config.actor.use_torch_compile, self.device, fused=self.config.model.use_liger)

    @property
    def _temperature(self) -> float:
        """The sampling temperature; 0: greedy, and the engine's log-probs have temperature 1."""
        rollout = self.config.rollout
        return rollout.temperature if rollout.do_sample else 0.0

    def _load(self, fsdp_config: FsdpConfig, *, trained: bool = False) -> ModelHandle:
        """Load the policy's initial weights; `trained`: with float32 parameters."""
        config = self.config

        def load(device: torch.device) -> ModelHandle:
            model = load_model(config.model, device=device, seed=config.trainer.seed)
            if config.actor.freeze_vision_tower:
                freeze_vision_tower(model)
            if config.actor.router.freeze:
                freeze_routers(model)
            return float32_masters(model) if trained else model

        return self._load_on_ranks(load, fsdp_config)

    def _load_on_ranks(self, load: Load, fsdp_config: FsdpConfig) -> ModelHandle:
        """A model on this device, or sharded over the ranks."""
        return load_on_ranks(load, self.ranks, fsdp_config, device=self.device, compiled=self.compiles())
