"""The loggers of a supervised run, and the names of its metrics."""

from pathlib import Path

from agentrl.config import to_yaml
from agentrl.config.schema.sft import SftConfig
from agentrl.tracking import Loggers, open_loggers

NAMES = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "lr": "train/lr",
    "tokens": "train/tokens",
    "skipped_steps": "train/skipped_steps",
    "val_loss": "val/loss",
}
"""Names of a step's metrics in logs, which are verl's."""


def sft_loggers(config: SftConfig, resume_step: int) -> Loggers:
    """Loggers besides the terminal, which the command serves; the settings are written in any case."""
    trainer = config.trainer
    return open_loggers(
        [name for name in trainer.logger if name != "console"],
        Path(trainer.output_dir),
        resume_step=resume_step,
        config_yaml=to_yaml(config),
        project=trainer.project_name,
        experiment=trainer.experiment_name,
    )
