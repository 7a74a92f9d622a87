"""The supervised run that the loop drives, in this process or on many."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass
class SftResult:
    """The result of a run."""

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


class SftRun(Protocol):
    """A supervised run, in this process (`Run`) or on many."""

    def length(self) -> tuple[int, int]:
        """(all steps, steps of an epoch)."""

    def next_step(self) -> dict[str, float]:
        """One optimizer step, and a due validation: loss (nats per token), grad_norm, lr, tokens,
        skipped_steps (1: the gradient was not finite), val_loss."""

    def save(self, folder: Path, step: int, state: dict[str, Any], last: bool, model_only: bool) -> None:
        """Write the checkpoint of a step."""

    def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        """Restore a checkpoint: (its step, an empty state)."""

    def finish(self) -> SftResult:
        """Write the model."""

    def close(self) -> None:
        """Release its processes."""
