"""AdamW, its schedule, gradient clipping, and what happens when a gradient is not finite."""

from math import cos, isfinite, pi
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.config.schema import Optim
from agentrl.errors import UserError


def lr_factor(
    step: int, *, kind: str, warmup: int, total: int, min_ratio: float = 0.0, num_cycles: float = 0.5
) -> float:
    """Share of the peak learning rate at `step` (0-based) of `total`.

    Linear warm-up over `warmup` steps, whose last has the full rate, then constant, linear or cosine down to
    `min_ratio`. Raises UserError for an unknown kind.
    """
    if kind not in ("constant", "linear", "cosine"):
        raise UserError(f"optim.lr_scheduler_type {kind!r} does not exist; it is constant, linear or cosine")
    if step < warmup:
        return (step + 1) / warmup
    if kind == "constant":
        return 1.0
    progress = min((step - warmup) / max(total - warmup, 1), 1.0)
    falling = 1.0 - progress if kind == "linear" else 0.5 * (1.0 + cos(pi * num_cycles * 2.0 * progress))
    return min_ratio + (1.0 - min_ratio) * max(falling, 0.0)


def warmup_steps(optim: Optim, total_steps: int) -> int:
    """Steps of warm-up: the number where it is given, else the share."""
    if optim.lr_warmup_steps >= 0:
        return optim.lr_warmup_steps
    return int(optim.lr_warmup_steps_ratio * total_steps)


class Optimizer:
    """AdamW over a module's trainable parameters. The schedule moves on by `advance`, not by `step`.

    So all optimizer steps of one training step share a learning rate, however many mini-batches it has.
    """

    def __init__(self, module: nn.Module, optim: Optim, *, grad_clip: float, total_steps: int) -> None:
        self.optim = optim
        self.grad_clip = grad_clip
        self.total_steps = total_steps
        self.schedule_step = 0
        self.skipped = 0
        """Optimizer steps left out so far because the gradient was not finite."""
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        decayed = [p for p in self.parameters if p.ndim >= 2]
        exempt = [p for p in self.parameters if p.ndim < 2]  # norms and biases
        self.adamw = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": optim.weight_decay}, {"params": exempt, "weight_decay": 0.0}],
            lr=optim.lr,
            betas=(optim.betas[0], optim.betas[1]),
            fused=True,
        )
        self._set_lr()

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        optim = self.optim
        return optim.lr * lr_factor(
            self.schedule_step,
            kind=optim.lr_scheduler_type,
            warmup=warmup_steps(optim, self.total_steps),
            total=self.total_steps,
            min_ratio=optim.min_lr_ratio,
            num_cycles=optim.num_cycles,
        )

    def step(self) -> float:
        """Clip, step, clear the gradients; returns the norm before clipping. Skips, and counts, a norm not finite."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())
        value = float(norm)
        if isfinite(value):
            self._apply(norm)
        else:
            self.skipped += 1
        self.adamw.zero_grad(set_to_none=True)
        return value

    def advance(self) -> None:
        """Go on to the schedule's next step."""
        self.schedule_step += 1
        self._set_lr()

    def state_dict(self) -> dict[str, Any]:
        """Moments, step counts, the schedule's place."""
        return {"adamw": self.adamw.state_dict(), "schedule_step": self.schedule_step, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; learning rate and decay stay those of the configuration."""
        mine = self.adamw.state_dict()["param_groups"]
        self.adamw.load_state_dict({"state": state["adamw"]["state"], "param_groups": mine})
        self.schedule_step = state["schedule_step"]
        self.skipped = state["skipped"]
        self._set_lr()

    def _apply(self, norm: Tensor) -> None:
        if self.grad_clip > 0:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.grad_clip, norm)
        self.adamw.step()

    def _set_lr(self) -> None:
        for group in self.adamw.param_groups:
            group["lr"] = self.lr
