"""Estimators and losses of the user's own are there, and keep their contract, before anything slow begins."""

from agentrl.config.choices import CRITIC_ESTIMATORS, ESTIMATORS, POLICY_LOSSES
from agentrl.config.schema import Actor, Algorithm, Critic, Model
from agentrl.core.errors import UserError


def own_functions(algorithm: Algorithm, actor: Actor, model: Model) -> None:
    """What is not built in is registered, or found by its path."""
    estimator, loss_mode = algorithm.adv_estimator, actor.policy_loss.loss_mode
    if estimator in ESTIMATORS and loss_mode in POLICY_LOSSES:
        return
    from agentrl.algorithms import bind_loss, reads  # torch comes with it
    from agentrl.core.plugins import import_external

    import_external(model.external_lib, "model")
    reads(estimator)
    bind_loss(loss_mode)


def own_critic(algorithm: Algorithm, critic: Critic) -> None:
    """An estimator of the user's own that names `values` has a critic."""
    if algorithm.adv_estimator in ESTIMATORS or not needs_critic(algorithm.adv_estimator):
        return
    if critic.enable is False:
        raise UserError(
            f"critic.enable=false: algorithm.adv_estimator={algorithm.adv_estimator} names `values`; leave "
            "critic.enable out"
        )


def needs_critic(estimator: str) -> bool:
    """Whether it compares with a critic's values. Raises UserError for an estimator that is not there."""
    if estimator in ESTIMATORS:
        return estimator in CRITIC_ESTIMATORS
    from agentrl.algorithms import reads

    return "values" in reads(estimator)
