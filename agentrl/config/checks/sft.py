"""Mistakes in the settings of `agentrl sft`."""

from agentrl.config.schema.sft import EACH_EPOCH, SftTrainer
from agentrl.core.errors import UserError


def frequencies(trainer: SftTrainer) -> None:
    """Steps, or the one word that stands for a number of them."""
    for name in ("test_freq", "save_freq"):
        value = getattr(trainer, name)
        if isinstance(value, str) and value != EACH_EPOCH:
            raise UserError(f"trainer.{name}={value}: must be a number of steps, or {EACH_EPOCH}")
