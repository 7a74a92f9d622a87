"""A supervised run as its loop sees it, in this process or on many."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass
class SftResult:
    """What came of a run."""

    path: Path
    steps: int
    final_loss: float | None
    """Mean over the last steps of this process, in nats a token; None where a checkpoint had them all."""
    conversations: int
    too_long: int
    val_loss: float | None
    """Of the last validation."""


class SftRun(Protocol):
    """A supervised run, in this process (`Run`) or on many."""

    def resume(self) -> tuple[int, int, int]:
        """Go on from where `trainer.resume_mode` says: (steps taken, all, those of an epoch). Raises UserError."""

    def next_step(self) -> dict[str, float]:
        """One optimizer step, and the validation that is due after it: loss (nats a token), grad_norm, lr, tokens,
        skipped_steps (1: the gradient was not finite), val_loss."""

    def save(self) -> None:
        """Write a checkpoint."""

    def finish(self) -> SftResult:
        """Write the model."""

    def close(self) -> None:
        """End what runs for it."""
