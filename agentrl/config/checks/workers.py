"""Processes fit the run."""

from typing import Any

from agentrl.config.derived import has_rollout_workers
from agentrl.config.schema import Rollout, Trainer
from agentrl.core.errors import UserError
from agentrl.core.shares import KEY


def rollout_workers(rollout: Rollout, trainer: Trainer) -> str | None:
    """Several processes are there to spread conversations over, and their order may depend on timing."""
    count = rollout.agent.num_workers
    if not count:
        return None
    if not has_rollout_workers(trainer, rollout):
        return (
            f"{KEY}={count} has no effect in a run of one process, whose one event loop serves the conversations of a "
            "GPU; with trainer.n_gpus_per_node or rollout.nnodes above its default, Ray starts the workers"
        )
    if rollout.deterministic:
        raise UserError(
            f"rollout.deterministic=true with {KEY}={count}: the order in which several processes send requests "
            f"depends on timing; set {KEY}=0, or deterministic=false"
        )
    return None


def split_experts(config: Any) -> None:
    """The processes that train can split experts."""
    trainer, section = config.trainer, "actor.fsdp_config" if hasattr(config, "actor") else "fsdp_config"
    sharding = config.actor.fsdp_config if hasattr(config, "actor") else config.fsdp_config
    size, processes = sharding.expert_parallel_size, trainer.nnodes * trainer.n_gpus_per_node
    if processes % size:
        raise UserError(
            f"{section}.expert_parallel_size={size} does not divide the {processes} processes that train; choose a "
            "divisor, or another trainer.n_gpus_per_node"
        )
