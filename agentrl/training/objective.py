"""The policy's loss and the off-policy correction of it, as the settings name them."""

import torch
from torch import Tensor

from agentrl.algorithms import PolicyLoss, bind_loss, importance_weights, rejection_mask
from agentrl.config.schema import Actor, RolloutCorrection
from agentrl.training.batch import Batch


def loss_of(actor: Actor) -> PolicyLoss:
    """The loss that the settings name, with all that any loss may ask for. Raises UserError for an unknown one."""
    policy_loss = actor.policy_loss
    return bind_loss(
        policy_loss.loss_mode,
        low=actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low,
        high=actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high,
        c=actor.clip_ratio_c,
        tau_pos=policy_loss.tau_pos,
        tau_neg=policy_loss.tau_neg,
        clip_cov_ratio=policy_loss.clip_cov_ratio,
        clip_cov_lb=policy_loss.clip_cov_lb,
        clip_cov_ub=policy_loss.clip_cov_ub,
        kl_cov_ratio=policy_loss.kl_cov_ratio,
        ppo_kl_coef=policy_loss.ppo_kl_coef,
    )


def corrected(
    losses: Tensor,
    old_logprobs: Tensor,
    micro: Batch,
    rollout_correction: RolloutCorrection,
    details: dict[str, Tensor],
) -> Tensor:
    """The losses f32 [T], weighted and dropped as the settings say; `details` learns of it."""
    columns = old_logprobs, micro.rollout_logprobs, micro.mask, micro.cu_seqlens
    if rollout_correction.rollout_is is not None:
        weights, capped = importance_weights(
            *columns,
            level=rollout_correction.rollout_is,
            cap=rollout_correction.rollout_is_threshold,
            mode=rollout_correction.rollout_is_mode,
        )
        details |= {"rollout_is": weights, "rollout_is_capped": capped}
        losses = losses * weights
    veto, upper = rollout_correction.rollout_token_veto_threshold, rollout_correction.rollout_rs_threshold
    if rollout_correction.rollout_rs is None and veto is None:
        return losses
    lower = rollout_correction.rollout_rs_threshold_lower
    kept = rejection_mask(
        *columns,
        level=rollout_correction.rollout_rs,
        upper=upper,
        lower=1 / upper if lower is None else lower,
        veto=veto,
    )
    details["rollout_rejected"] = 1 - kept.float()
    return torch.where(kept, losses, 0.0)
