"""The policy loss of the settings."""

from agentrl.algorithms import PolicyLoss, bind_loss
from agentrl.config.schema import Actor


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
        config=actor,
        **policy_loss.options,
    )
