"""The result of a supervised run."""

from dataclasses import dataclass
from pathlib import Path


@dataclass
class SftResult:
    """What was trained on, and the model."""

    path: Path
    steps: int
    final_loss: float | None
    """Mean over the last steps of this process, in nats per token; None where a checkpoint had all steps."""
    conversations: int
    too_long: int
    below: int
    """Rollouts with a reward under `data.min_reward`, or none."""
    val_loss: float | None
    """Loss of the last validation."""
