"""The policy loss of the settings."""

from agentrl.algorithms import PolicyLoss, bind_loss
from agentrl.config.schema import Actor
from agentrl.core.points import POLICY_LOSS_OPTIONS


def loss_of(actor: Actor) -> PolicyLoss:
    """The loss that the settings name, with all that any loss may ask for. Raises UserError for an unknown one."""
    policy_loss = actor.policy_loss
    return bind_loss(
        policy_loss.loss_mode,
        low=actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low,
        high=actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high,
        c=actor.clip_ratio_c,
        config=actor,
        **POLICY_LOSS_OPTIONS | policy_loss.options,
    )
