"""Values that a number cannot have, whatever the other settings are."""

from typing import Any

from agentrl.config.keys import as_list, marked, value_at
from agentrl.config.schema.marks import Range
from agentrl.core.errors import UserError

RANGES = marked(Range)


def ranges(config: Any) -> None:
    """Raises UserError for the first number that is out of its key's range."""
    for key, valid in RANGES.items():
        value = value_at(config, key)
        if not all(valid.fits(number) for number in as_list(value) if number is not None):
            raise UserError(f"{key}={value}: {valid.says}")


def pairs(config: Any) -> None:
    """Raises UserError for betas that are not two, a warm-up between steps and shares, and other single mistakes."""
    for section in ("actor", ""):
        optim = getattr(getattr(config, section, config), "optim", None)
        key = f"{section}.optim".lstrip(".")
        if optim is not None and len(optim.betas) != 2:
            raise UserError(f"{key}.betas={optim.betas}: write two numbers, such as [0.9, 0.999]")
        warm_up = getattr(optim, "lr_warmup_steps", 0)
        if isinstance(warm_up, float) and warm_up > 1 and warm_up % 1:
            raise UserError(f"{key}.lr_warmup_steps={warm_up}: write steps as 10, or a share of all steps as 0.1")
    if config.model.lora_rank and config.model.lora_alpha <= 0:
        raise UserError(f"model.lora_alpha={config.model.lora_alpha}: must be over 0")
    if not config.trainer.experiment_name:
        raise UserError("trainer.experiment_name is empty: name the run")
