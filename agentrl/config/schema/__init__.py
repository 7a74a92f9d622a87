"""Every configuration key: its type, default and meaning. The docstring under a field is its documentation."""

from dataclasses import dataclass, field

from agentrl.config.schema.actor import Actor, Optim, PolicyLoss
from agentrl.config.schema.algorithm import PFPPO, Algorithm, FilterGroups, KLControl, RolloutCorrection
from agentrl.config.schema.data import CustomClass, Data
from agentrl.config.schema.model import Model
from agentrl.config.schema.reward import Reward, RewardFunction, SandboxFusion
from agentrl.config.schema.rollout import Agent, MultiTurn, Rollout, ValSampling
from agentrl.config.schema.trainer import Trainer


@dataclass
class Config:
    """`agentrl train`."""

    data: Data = field(default_factory=Data)
    """Rows."""
    model: Model = field(default_factory=Model)
    """The policy."""
    actor: Actor = field(default_factory=Actor)
    """Its update."""
    rollout: Rollout = field(default_factory=Rollout)
    """Trajectories."""
    reward: Reward = field(default_factory=Reward)
    """Scores."""
    algorithm: Algorithm = field(default_factory=Algorithm)
    """Advantages."""
    trainer: Trainer = field(default_factory=Trainer)
    """The run."""


__all__ = [
    "PFPPO",
    "Actor",
    "Agent",
    "Algorithm",
    "Config",
    "CustomClass",
    "Data",
    "FilterGroups",
    "KLControl",
    "Model",
    "MultiTurn",
    "Optim",
    "PolicyLoss",
    "Reward",
    "RewardFunction",
    "Rollout",
    "RolloutCorrection",
    "SandboxFusion",
    "Trainer",
    "ValSampling",
]
