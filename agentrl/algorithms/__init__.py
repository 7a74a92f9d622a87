"""The algorithms: pure functions over packed tensors, without I/O and without configuration objects.

T tokens are in one row; `cu_seqlens` int32 [B+1] has the bounds of B sequences. Entry t of every [T] tensor belongs to
token t itself: `logprobs[t]` is log p(token t | the tokens before it in its sequence), 0 for a sequence's first.
"""

from agentrl.algorithms.advantages import ADVANTAGES, estimate
from agentrl.algorithms.aggregate import LOSS_AGG_MODES, token_weights
from agentrl.algorithms.correction import importance_weights
from agentrl.algorithms.entropy import entropy_from_logits
from agentrl.algorithms.filters import PF_PPO_METHODS, draw
from agentrl.algorithms.kl import KL_ESTIMATORS, KLController, kl_controller, kl_penalty, penalise
from agentrl.algorithms.losses import POLICY_LOSSES, OptimizerStep, PolicyLoss, bind_loss, ppo_clip_loss
from agentrl.algorithms.rejection import criteria_of, kept_by

__all__ = [
    "ADVANTAGES",
    "KL_ESTIMATORS",
    "LOSS_AGG_MODES",
    "PF_PPO_METHODS",
    "POLICY_LOSSES",
    "KLController",
    "OptimizerStep",
    "PolicyLoss",
    "bind_loss",
    "criteria_of",
    "draw",
    "entropy_from_logits",
    "estimate",
    "importance_weights",
    "kept_by",
    "kl_controller",
    "kl_penalty",
    "penalise",
    "ppo_clip_loss",
    "token_weights",
]
