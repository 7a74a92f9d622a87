"""What does not go together with `trainer.max_staleness` above 0."""

from agentrl.config.derived import changed_distribution
from agentrl.config.schema import Algorithm, Data, Rollout, Trainer
from agentrl.core.errors import UserError

KEY = "trainer.max_staleness"


def bound(trainer: Trainer, rollout: Rollout) -> None:
    """A run that may depend on timing."""
    if trainer.max_staleness and rollout.deterministic:
        raise UserError(
            f"rollout.deterministic=true with {KEY}={trainer.max_staleness}: the weights that draw a token depend on "
            f"timing; set {KEY}=0, or deterministic=false"
        )


def corrected(trainer: Trainer, rollout: Rollout, algorithm: Algorithm) -> str | None:
    """Tokens of older weights are corrected."""
    if not trainer.max_staleness or trainer.val_only:
        return None
    cut = changed_distribution(rollout)
    if cut is not None:
        raise UserError(
            f"{cut} with {KEY}={trainer.max_staleness}: log-probs of a changed distribution cannot correct tokens of "
            f"older weights; remove it, or set {KEY}=0"
        )
    correction = algorithm.rollout_correction
    if correction.rollout_is is None and correction.rollout_rs is None and not correction.bypass_mode:
        return (
            f"algorithm.rollout_correction.rollout_is=null with {KEY}={trainer.max_staleness}: tokens of older weights "
            "are trained on as if the present ones had drawn them; set it to token"
        )
    return None


def filtered_batches(trainer: Trainer, data: Data, algorithm: Algorithm) -> None:
    """Filtered groups keep to the bound: a step may need a whole further batch, and takes a batch's worth at least."""
    if not trainer.max_staleness or not algorithm.filter_groups.enable:
        return
    size, batches = data.train_batch_size, algorithm.filter_groups.max_num_gen_batches
    drawn, most = data.gen_batch_size or size, trainer.max_staleness * size
    if drawn > most:
        raise UserError(
            f"data.gen_batch_size={drawn} with {KEY}={trainer.max_staleness} and data.train_batch_size={size}: "
            f"groups would become too old; set it to {most} or less"
        )
    if 0 < batches * drawn < size:
        raise UserError(
            f"algorithm.filter_groups.max_num_gen_batches={batches} with {KEY}={trainer.max_staleness}: "
            f"{batches} batches of {drawn} prompts do not fill data.train_batch_size={size}, and groups would become "
            f"too old; set it to {-(-size // drawn)} or more"
        )
