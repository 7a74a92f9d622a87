"""Facts that follow from several keys: processes of a run, its critic, what a critic inherits from the actor."""

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any, TypeVar

from agentrl.config.schema import Algorithm, Config, Optim, Reward, Rollout, Teacher, Trainer
from agentrl.core.errors import UserError, plural
from agentrl.core.points import ADVANTAGES, LOOPS, OPTIMIZERS
from agentrl.trajectory.row import Row

T = TypeVar("T")

ADAMW_BYTES = 8
"""Bytes of a parameter's two moments."""


def inherited(own: Any, base: T) -> T:
    """The settings `base` with the values that `own` sets in keys of the same name, at any depth; null sets none."""
    names = [field.name for field in fields(own) if hasattr(base, field.name)]
    values = {name: getattr(own, name) for name in names if getattr(own, name) is not None}
    below = {name: inherited(value, getattr(base, name)) for name, value in values.items() if is_dataclass(value)}
    return replace(base, **values | below)  # type: ignore[type-var]  # a section of the schema


def optimizer_name(optim: Optim) -> str:
    """The optimizer by its name, or by its path."""
    if optim.optimizer_impl not in (None, OPTIMIZERS.package):
        return f"{optim.optimizer_impl}.{optim.optimizer}"
    return "adamw" if optim.optimizer == "AdamW" else optim.optimizer


def state_bytes(optim: Optim) -> float:
    """Bytes that the optimizer keeps of a trained parameter, about; AdamW's for one of the user's own."""
    return float(OPTIMIZERS.mark(optimizer_name(optim), "state_bytes", "optim.optimizer") or ADAMW_BYTES)


def with_custom(section: Any) -> dict[str, Any]:
    """A section as a mapping in which the settings of its `custom` are keys, as code written for verl reads them."""
    return _onto(section.custom, asdict(section))


def _onto(custom: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    """`keys` and what `custom` adds to them, at any depth."""
    both = {name: _onto(custom[name], keys[name]) for name in custom if isinstance(keys.get(name), dict)}
    return custom | keys | both


def processes(trainer: Trainer, rollout: Rollout) -> int:
    """Processes for training plus processes only for sampling."""
    return trainer.nnodes * trainer.n_gpus_per_node + rollout.nnodes * sampling_per_node(trainer, rollout)


def sampling_per_node(trainer: Trainer, rollout: Rollout) -> int:
    """GPUs (on a CPU: processes) of each machine that only samples."""
    return rollout.n_gpus_per_node or trainer.n_gpus_per_node


def has_critic(config: Config) -> bool:
    """Whether the run has a critic: `critic.enable`, or null and an estimator that reads values."""
    critic = config.critic
    return needs_critic(config.algorithm.adv_estimator) if critic.enable is None else critic.enable


def full_kl_in(config: Config) -> str | None:
    """Where the KL over the whole vocabulary is used: "loss", "reward" or None."""
    actor, algorithm = config.actor, config.algorithm
    if actor.use_kl_loss:
        return "loss" if actor.kl_loss_type == "full" else None
    return "reward" if algorithm.use_kl_in_reward and algorithm.kl_penalty == "full" else None


def teacher_of(row: Row, teachers: Mapping[str, Teacher]) -> str | None:
    """The name of a row's teacher; None where there are none. Raises UserError where none of several is named."""
    named = row.extra_info.get("teacher")
    name = next(iter(teachers), None) if len(teachers) == 1 and named is None else named or row.data_source
    if teachers and name not in teachers:
        raise UserError(
            f"row {row.uid}: {name!r} is none of teachers ({', '.join(teachers)}): name one in extra_info.teacher"
        )
    return name if teachers else None


def has_rollout_workers(trainer: Trainer, rollout: Rollout) -> bool:
    """Whether processes of their own run the conversations; a run of one process ignores the workers it asks for."""
    return rollout.agent.num_workers > 0 and processes(trainer, rollout) > 1


def own_loops(rollout: Rollout) -> bool:
    """Whether the user's agent loops may run."""
    agent = rollout.agent
    return bool(agent.agent_loop_config_path) or agent.default_agent_loop not in (None, *LOOPS.declared)


def records_experts(config: Config) -> bool:
    """Whether the engine reports the experts that tokens meet."""
    return config.rollout.enable_rollout_routing_replay or config.actor.router_replay.mode == "R3"


def deterministic(trainer: Trainer, rollout: Rollout) -> bool:
    """Whether the hf engine waits for every live trajectory: `rollout.deterministic`, or null and a run in which no
    timing decides the order of requests: it neither samples ahead nor has rollout workers."""
    timed = trainer.max_staleness > 0 or has_rollout_workers(trainer, rollout)
    return not timed if rollout.deterministic is None else rollout.deterministic


def has_baselines(config: Config) -> bool:
    """Whether the estimator reads the scores of greedy answers, as ReMax does."""
    return "baselines" in ADVANTAGES.keywords(config.algorithm.adv_estimator, "algorithm.adv_estimator")


def group_size(config: Config) -> int:
    """Trajectories of a group that is sampled ahead: `rollout.n`, then the greedy answer if there are baselines."""
    return config.rollout.n + has_baselines(config)


def components_of(algorithm: Algorithm, reward: Reward) -> dict[str, float]:
    """The parts of the reward that the estimator reads, with their weights. Raises UserError where there are none."""
    estimator, weights = algorithm.adv_estimator, algorithm.gdpo_reward_weights
    if "components" not in ADVANTAGES.keywords(estimator, "algorithm.adv_estimator"):
        return {}
    names = algorithm.gdpo_reward_keys or [*reward.functions]
    if not names:
        raise UserError(
            f"algorithm.adv_estimator={estimator} compares parts of the reward: set reward.functions, or "
            "algorithm.gdpo_reward_keys=[accuracy,format], names of values in the reward function's dict"
        )
    if weights and len(weights) != len(names):
        raise UserError(
            f"algorithm.gdpo_reward_weights has {plural(len(weights), 'weight')} for {', '.join(names)}: give one each"
        )
    default = [term.weight if (term := reward.functions.get(name)) else 1.0 for name in names]
    return dict(zip(names, weights or default, strict=True))


def needs_critic(estimator: str) -> bool:
    """Whether an estimator compares with a critic's values. Raises UserError for one that is not there."""
    return "values" in ADVANTAGES.keywords(estimator, "algorithm.adv_estimator")


def compares_in_groups(estimator: str) -> bool:
    """Whether an estimator gives 0 where a prompt has one answer. Raises UserError for one that is not there."""
    return bool(ADVANTAGES.mark(estimator, "grouped", "algorithm.adv_estimator"))


def changed_distribution(rollout: Rollout) -> str | None:
    """The setting by which training samples do not come from the policy's own distribution; None: they do."""
    changes = {
        "top_p": rollout.top_p < 1,
        "top_k": rollout.top_k > 0,
        "min_p": rollout.min_p > 0,
        "repetition_penalty": rollout.repetition_penalty != 1,
    }
    return next((f"rollout.{name}={getattr(rollout, name)}" for name, changed in changes.items() if changed), None)
