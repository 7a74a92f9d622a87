"""Keys of the critic, the value network of PPO, and of the reference. What has no key here is the actor's."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from agentrl.config.schema.actor import LOSS_AGG_MODES, OPTIMIZER, WARM_UP
from agentrl.config.schema.marks import ABOVE_0, AT_LEAST_0, AT_LEAST_1, ModelPath, OpenChoice, Range
from agentrl.core import points

STEPS = Range(lambda value: value == -1 or value >= 1, "must be at least 1; -1 keeps the first weights")


@dataclass
class CriticModel:
    """The critic's network; the rest is as in `model`."""

    path: ModelPath | None = None
    """Folder in Hugging Face format, or a hub id; null: the policy's."""
    override_config: dict[str, Any] = field(default_factory=dict)
    """Changes to the network's own configuration (config.json)."""
    lora_rank: Annotated[int, AT_LEAST_0] = 0
    """Rank of LoRA adapters (arXiv 2106.09685); 0 trains all parameters."""


@dataclass
class CriticOptim:
    """Learning rate of the critic; the rest is as in `actor.optim`."""

    lr: Annotated[float, AT_LEAST_0] = 1e-5
    """Peak learning rate."""
    lr_scheduler_type: Annotated[str | None, OpenChoice(points.LR_SCHEDULES)] = None
    """The learning rate after the warm-up."""
    lr_warmup_steps: Annotated[int | float | None, WARM_UP] = None
    """Steps of linear warm-up, or their share of all steps."""
    weight_decay: Annotated[float | None, AT_LEAST_0] = None
    """Weight decay, not applied to norms and biases."""
    optimizer: Annotated[str | None, OPTIMIZER] = None
    """As `actor.optim.optimizer`."""
    optimizer_impl: str | None = None
    """Module of the class that `optimizer` names."""
    override_optimizer_config: dict[str, Any] | None = None
    """Further arguments of the optimizer."""


@dataclass
class Critic:
    """The value function of PPO and its update. A key that is null takes the actor's value."""

    enable: bool | None = None
    """Train a critic; null: only if the estimator needs one (gae, gae_turn)."""
    model: CriticModel = field(default_factory=CriticModel)
    """The network: a causal LM (its head is replaced), or a token classification model with one label."""
    ppo_mini_batch_size: Annotated[int | None, AT_LEAST_1] = None
    """Prompts per optimizer step."""
    ppo_micro_batch_size_per_gpu: Annotated[int | None, AT_LEAST_1] = None
    """Sequences per micro-batch."""
    ppo_max_token_len_per_gpu: Annotated[int | None, AT_LEAST_1] = None
    """Token budget of a micro-batch with `actor.use_dynamic_bsz`."""
    ppo_epochs: Annotated[int | None, AT_LEAST_1] = None
    """Passes over each step's trajectories."""
    grad_clip: Annotated[float, ABOVE_0] = 1.0
    """Gradients are clipped to this norm."""
    cliprange_value: float = 0.5
    """Clip range of the value loss, around the values before the step."""
    loss_agg_mode: Annotated[str | None, LOSS_AGG_MODES] = None
    """token-mean, seq-mean-token-sum, seq-mean-token-mean or seq-mean-token-sum-norm, as for the actor."""
    optim: CriticOptim = field(default_factory=CriticOptim)
    """Optimizer and schedule."""


@dataclass
class RefOffload:
    """Memory of the reference; its sharding is as in `actor.fsdp_config`."""

    param_offload: bool = False
    """Keep it in CPU memory while it is not used."""


@dataclass
class Ref:
    """The policy at the start of the run, or at most `update_freq` steps ago; loaded only for actor.use_kl_loss or
    algorithm.use_kl_in_reward. It runs as the actor does."""

    fsdp_config: RefOffload = field(default_factory=RefOffload)
    """Memory."""
    update_freq: Annotated[int, STEPS] = -1
    """Steps after which the reference gets the policy's weights; -1: it keeps those of the start."""
