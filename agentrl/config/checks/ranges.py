"""Values that a number cannot have, whatever the other settings are."""

from typing import Any

from agentrl.config.keys import places, value_at
from agentrl.config.schema.marks import Range
from agentrl.core.errors import UserError


def ranges(config: Any) -> None:
    """Raises UserError for the first number that is out of its key's range."""
    for place in places(config, Range):
        if not all(map(place.mark.fits, place.values)):
            raise UserError(f"{place.key}={place.value}: {place.mark.says}")


def pairs(config: Any) -> None:
    """Raises UserError for betas that are not two, an adapter without a scale, and a run without a name."""
    for key in ("actor.optim.betas", "optim.betas"):
        betas = value_at(config, key)
        if betas is not None and len(betas) != 2:
            raise UserError(f"{key}={betas}: write two numbers, such as [0.9, 0.999]")
    if config.model.lora_rank and config.model.lora_alpha <= 0:
        raise UserError(f"model.lora_alpha={config.model.lora_alpha}: must be over 0")
    if not config.trainer.experiment_name:
        raise UserError("trainer.experiment_name is empty: name the run")
