"""The algorithms: pure functions over packed tensors, without I/O and without configuration objects.

T tokens lie in a row; B sequences are bounded by `cu_seqlens` int32 [B+1]. Entry t of every [T] tensor belongs to
token t itself: `logprobs[t]` is log p(token t | the tokens before it in its sequence), 0 for a sequence's first.
"""

from agentrl.algorithms.advantages import ADVANTAGES
from agentrl.algorithms.aggregate import LOSS_AGG_MODES, token_weights
from agentrl.algorithms.correction import importance_weights
from agentrl.algorithms.entropy import entropy_from_logits
from agentrl.algorithms.kl import KL_ESTIMATORS, AdaptiveKL, FixedKL, KLController, kl_controller, kl_penalty, penalise
from agentrl.algorithms.policy_loss import ppo_clip_loss

__all__ = [
    "ADVANTAGES",
    "KL_ESTIMATORS",
    "LOSS_AGG_MODES",
    "AdaptiveKL",
    "FixedKL",
    "KLController",
    "entropy_from_logits",
    "importance_weights",
    "kl_controller",
    "kl_penalty",
    "penalise",
    "ppo_clip_loss",
    "token_weights",
]
