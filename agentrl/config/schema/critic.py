"""The critic: a second network that learns what to expect, for the estimators that compare with it."""

from dataclasses import dataclass, field

from agentrl.config.schema.actor import Optim
from agentrl.config.schema.fsdp import FsdpConfig
from agentrl.config.schema.model import Network


@dataclass
class CriticCheckpoint:
    """What of the critic is saved and loaded."""

    save_contents: list[str] | None = None
    """Any of model, optimizer, extra; null: what actor.checkpoint.save_contents says."""
    load_contents: list[str] | None = None
    """What of it a resumed run takes: model, optimizer, extra; null: what actor.checkpoint.load_contents says."""


@dataclass
class Critic:
    """The value function of PPO, and its update. Where a key is null the actor's counts."""

    enable: bool | None = None
    """null: where the estimator needs one (gae, gae_turn)."""
    model: Network = field(default_factory=Network)
    """Its network: any causal LM, whose head is replaced, or a token classification model with one label."""
    ppo_mini_batch_size: int | None = None
    """Prompts per optimizer step."""
    ppo_micro_batch_size_per_gpu: int | None = None
    """Sequences per forward pass."""
    use_dynamic_bsz: bool | None = None
    """Fill each forward pass up to a number of tokens."""
    ppo_max_token_len_per_gpu: int | None = None
    """Token budget of a forward pass with `use_dynamic_bsz`."""
    forward_micro_batch_size_per_gpu: int | None = None
    """Sequences per forward pass without an update; null: as in the update."""
    forward_max_token_len_per_gpu: int | None = None
    """Token budget of a forward pass without an update; null: as in the update."""
    ppo_epochs: int | None = None
    """Passes over each step's trajectories."""
    shuffle: bool | None = None
    """Shuffle trajectories before cutting mini-batches."""
    data_loader_seed: int | None = None
    """Seed of that shuffling."""
    grad_clip: float = 1.0
    """Largest gradient norm."""
    cliprange_value: float = 0.5
    """How far a value may move from that before the step and still lower the loss."""
    loss_agg_mode: str | None = None
    """token-mean, seq-mean-token-sum, seq-mean-token-mean or seq-mean-token-sum-norm, as for the actor."""
    optim: Optim = field(default_factory=lambda: Optim(lr=1e-5))
    """Optimizer and schedule."""
    fsdp_config: FsdpConfig = field(default_factory=FsdpConfig)
    """How processes share it."""
    checkpoint: CriticCheckpoint = field(default_factory=CriticCheckpoint)
    """What is saved."""
