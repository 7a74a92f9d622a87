"""Every configuration key: its type, default and meaning. The docstring under a field is its documentation."""

from dataclasses import dataclass, field
from typing import Any

from agentrl.config.schema.actor import Actor, Optim, PolicyLoss, Profiler
from agentrl.config.schema.algorithm import PFPPO, Algorithm, KLControl, RolloutCorrection
from agentrl.config.schema.critic import Critic, Ref
from agentrl.config.schema.data import CustomClass, Data
from agentrl.config.schema.distillation import Distillation, Teacher
from agentrl.config.schema.model import Model, Pretrained
from agentrl.config.schema.reward import Reward, RewardModel, RewardNetwork
from agentrl.config.schema.rollout import Rollout
from agentrl.config.schema.trainer import RayInit, Trainer


@dataclass
class Config:
    """`agentrl train`."""

    data: Data = field(default_factory=Data)
    """Rows."""
    model: Model = field(default_factory=Model)
    """The policy."""
    actor: Actor = field(default_factory=Actor)
    """The update of the policy."""
    ref: Ref = field(default_factory=Ref)
    """The reference policy of KL penalties."""
    critic: Critic = field(default_factory=Critic)
    """The value function, for estimators that use one."""
    rollout: Rollout = field(default_factory=Rollout)
    """Trajectories."""
    reward: Reward = field(default_factory=Reward)
    """Rewards."""
    algorithm: Algorithm = field(default_factory=Algorithm)
    """Advantages."""
    teachers: dict[str, Teacher] = field(default_factory=dict)
    """Teachers by name: {model: {path: ...}, engine: sglang, n_gpus: 1}, {base_url: ...}, {where: ranks}, or {model:
    policy, context: file.py:function}."""
    distillation: Distillation = field(default_factory=Distillation)
    """Training on the teachers' probabilities."""
    trainer: Trainer = field(default_factory=Trainer)
    """The run."""
    ray_init: RayInit = field(default_factory=RayInit)
    """Ray, for runs with several processes."""
    custom: dict[str, Any] = field(default_factory=dict)
    """Settings of your own code, under any name; docs/config.md shows who reads them."""
