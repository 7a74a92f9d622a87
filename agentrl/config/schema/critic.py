"""Keys of the critic: the value network of PPO."""

from dataclasses import dataclass, field

from agentrl.config.schema.actor import Optim
from agentrl.config.schema.fsdp import FsdpConfig
from agentrl.config.schema.model import Network


@dataclass
class CriticCheckpoint:
    """Saved and loaded parts of the critic."""

    save_contents: list[str] | None = None
    """Any of model, optimizer, extra; null: as actor.checkpoint.save_contents."""
    load_contents: list[str] | None = None
    """Parts that a resumed run loads: model, optimizer, extra; null: as actor.checkpoint.load_contents."""


@dataclass
class Critic:
    """The value function of PPO and its update. A key that is null takes the actor's value."""

    enable: bool | None = None
    """Train a critic; null: only if the estimator needs one (gae, gae_turn)."""
    model: Network = field(default_factory=Network)
    """The network: a causal LM (its head is replaced), or a token classification model with one label."""
    ppo_mini_batch_size: int | None = None
    """Prompts per optimizer step."""
    ppo_micro_batch_size_per_gpu: int | None = None
    """Sequences per micro-batch."""
    use_dynamic_bsz: bool | None = None
    """Fill each micro-batch up to a token budget."""
    ppo_max_token_len_per_gpu: int | None = None
    """Token budget of a micro-batch with `use_dynamic_bsz`."""
    forward_micro_batch_size_per_gpu: int | None = None
    """Sequences per micro-batch when values are computed; null: as in the update."""
    forward_max_token_len_per_gpu: int | None = None
    """Token budget of a micro-batch when values are computed; null: as in the update."""
    ppo_epochs: int | None = None
    """Passes over each step's trajectories."""
    shuffle: bool | None = None
    """Shuffle trajectories before they are split into mini-batches."""
    data_loader_seed: int | None = None
    """Seed of this shuffle."""
    grad_clip: float = 1.0
    """Gradients are clipped to this norm."""
    cliprange_value: float = 0.5
    """Clip range of the value loss, around the values before the step."""
    loss_agg_mode: str | None = None
    """token-mean, seq-mean-token-sum, seq-mean-token-mean or seq-mean-token-sum-norm, as for the actor."""
    optim: Optim = field(default_factory=lambda: Optim(lr=1e-5))
    """Optimizer and schedule."""
    fsdp_config: FsdpConfig = field(default_factory=FsdpConfig)
    """Sharding over processes."""
    checkpoint: CriticCheckpoint = field(default_factory=CriticCheckpoint)
    """Saved parts."""
