"""A loss scale for float16, whose smallest number is 6e-8: gradients of a mean over millions of tokens are below that.

The loss is multiplied by the scale before the backward pass, and gradients are divided by it before use (arXiv
1710.03740). The scale is a power of two, so both are exact. It falls after an overflow, which skips that optimizer
step, and rises after `INTERVAL` steps without one.
"""

from typing import Any

import torch

START = 2.0**16
FACTOR = 2.0
INTERVAL = 400
"""Optimizer steps without overflow before the scale rises; verl's value."""
BOUNDS = (1.0, 2.0**32)


class LossScale:
    """The factor of losses; always 1 where layers do not compute in float16."""

    def __init__(self, dtype: torch.dtype | None, world: int = 1) -> None:
        """`dtype`: of the layers' arithmetic. `world`: ranks; each multiplies its part of the loss by their number."""
        self.needed = dtype == torch.float16
        self.value = START / 2 ** (world - 1).bit_length() if self.needed else 1.0
        self.steps = 0
        """Optimizer steps since the last change."""

    def update(self, *, overflow: bool) -> None:
        """Count an optimizer step; `overflow`: its gradient was not finite."""
        if not self.needed:
            return
        self.steps += 1
        if overflow or self.steps >= INTERVAL:
            self.value = min(max(self.value / FACTOR if overflow else self.value * FACTOR, BOUNDS[0]), BOUNDS[1])
            self.steps = 0

    def state_dict(self) -> dict[str, float]:
        """For a checkpoint."""
        return {"value": self.value, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint; one of a run in another dtype has no effect."""
        if self.needed and state and state["value"] > 1.0:
            self.value, self.steps = float(state["value"]), int(state["steps"])
