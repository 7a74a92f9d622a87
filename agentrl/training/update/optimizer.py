"""AdamW with its schedule, gradient clipping and loss scale; steps with a non-finite gradient are skipped.

The loss scale is for float16, whose smallest number is 6e-8: gradients of a mean over millions of tokens are below
that. The loss is multiplied by the scale before the backward pass, and gradients are divided by it before use (arXiv
1710.03740). The scale is a power of two, so both are exact. It falls after an overflow, which skips that optimizer
step, and rises after `SCALE_INTERVAL` steps without one.
"""

from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.config.schema import Optim
from agentrl.core.errors import UserError
from agentrl.training.model.handle import ModelHandle
from agentrl.training.parallel.ranks import ALONE, Ranks
from agentrl.training.parallel.shards import local
from agentrl.training.perf.offload import move_moments
from agentrl.training.update.schedules import lr_factor

MOMENTS = ("exp_avg", "exp_avg_sq")

FIRST_SCALE = 2.0**16
SCALE_FACTOR = 2.0
SCALE_INTERVAL = 400
"""Optimizer steps without overflow before the scale rises; verl's value."""
SCALE_BOUNDS = (1.0, 2.0**32)


class LossScale:
    """The factor of losses; always 1 where layers do not compute in float16."""

    def __init__(self, dtype: torch.dtype | None, world: int = 1) -> None:
        """`dtype`: of the layers' arithmetic. `world`: ranks; each multiplies its part of the loss by their number."""
        self.needed = dtype == torch.float16
        self.value = FIRST_SCALE / 2 ** (world - 1).bit_length() if self.needed else 1.0
        self.steps = 0
        """Optimizer steps since the last change."""

    def update(self, *, overflow: bool) -> None:
        """Count an optimizer step; `overflow`: its gradient was not finite."""
        if not self.needed:
            return
        self.steps += 1
        if overflow or self.steps >= SCALE_INTERVAL:
            lowest, highest = SCALE_BOUNDS
            value = self.value / SCALE_FACTOR if overflow else self.value * SCALE_FACTOR
            self.value = min(max(value, lowest), highest)
            self.steps = 0

    def state_dict(self) -> dict[str, float]:
        """For a checkpoint."""
        return {"value": self.value, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint; one of a run in another dtype has no effect."""
        if self.needed and state and state["value"] > 1.0:
            self.value, self.steps = float(state["value"]), int(state["steps"])


def warmup_steps(optim: Optim, total_steps: int) -> int:
    """Warm-up steps; a decimal number up to 1.0 is the share of all steps."""
    steps = optim.lr_warmup_steps
    return int(steps * total_steps if isinstance(steps, float) and steps <= 1 else steps)


class Optimizer:
    """AdamW over a module's trainable parameters. `advance` moves the schedule, `step` does not.

    So all optimizer steps of one training step have the same learning rate.
    """

    def __init__(
        self,
        model: nn.Module | ModelHandle,
        optim: Optim,
        *,
        grad_clip: float,
        total_steps: int,
        ranks: Ranks = ALONE,
        offload: bool = False,
    ) -> None:
        """`model` may be sharded over `ranks`. `offload`: the moments are in CPU memory between steps."""
        self.optim = optim
        self.ranks = ranks
        self.offload = offload
        self.grad_clip = grad_clip
        self.total_steps = total_steps
        self.schedule_step = 0
        self.skipped = 0
        """Optimizer steps skipped so far because the gradient was not finite."""
        model = ModelHandle.of(model)
        self.scale = LossScale(model.compute_dtype, ranks.world)
        self.shards = model.trainable_shards()
        self.parameters = [shard.parameter for shard in self.shards.values()]
        if any(p.dtype in (torch.bfloat16, torch.float16) for p in self.parameters):
            raise UserError(
                "parameters in half precision lose small updates: call agentrl.training.model.loading.float32_masters"
            )
        decayed = [shard.parameter for shard in self.shards.values() if len(shard.shape) >= 2]
        exempt = [shard.parameter for shard in self.shards.values() if len(shard.shape) < 2]  # norms and biases
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
            stable_ratio=optim.stable_ratio,
        )

    @property
    def loss_scale(self) -> float | None:
        """The factor of float16 losses; None where layers compute in another dtype."""
        return self.scale.value if self.scale.needed else None

    def step(self) -> float:
        """Clip, step, clear the gradients; returns the norm before clipping. Skips and counts non-finite norms.

        Gradients are of the loss times `scale.value`; the norm is of the loss itself.
        """
        gradients = [local(p.grad) for p in self.parameters if p.grad is not None]
        norm = self.ranks.norm(gradients) / self.scale.value
        value = float(norm)
        if isfinite(value):
            self._apply(gradients, norm)
        else:
            self.skipped += 1
        self.scale.update(overflow=not isfinite(value))
        self.clear()
        return value

    def scale_gradients(self, factor: float) -> None:
        """Multiply the gradients so far."""
        gradients = [local(p.grad) for p in self.parameters if p.grad is not None]
        if gradients and factor != 1.0:
            torch._foreach_mul_(gradients, factor)

    def clear(self) -> None:
        """Clear the gradients."""
        self.adamw.zero_grad(set_to_none=True)

    def advance(self) -> None:
        """Move to the schedule's next step."""
        self.schedule_step += 1
        self._set_lr()

    def state_dict(self) -> dict[str, Any]:
        """Moments and step counts by parameter, the schedule's step, the loss scale."""
        held = {n: self.adamw.state[s.parameter] for n, s in self.shards.items() if s.parameter in self.adamw.state}
        # A rank without elements of a parameter has no moments of it, but all ranks must save the same step count.
        counts = self.ranks.merge({name: float(state["step"]) for name, state in held.items()})
        steps = {name: counts[name] for name in self.shards if name in counts}
        moments = {
            moment: {
                name: self.shards[name].local_chunk(held[name][moment] if name in held else None) for name in steps
            }
            for moment in MOMENTS
        }
        progress = {"schedule_step": self.schedule_step, "skipped": self.skipped, "scale": self.scale.state_dict()}
        return {"moments": moments, "steps": steps, **progress}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint; learning rate and decay stay those of the configuration."""
        self.adamw.state.clear()
        for name, count in state["steps"].items():
            shard = self.shards[name]
            parameter = shard.parameter
            moments = {moment: torch.zeros_like(parameter) for moment in MOMENTS}
            for moment, tensor in moments.items():
                shard.fill(tensor, state["moments"][moment][name])
            step = torch.tensor(count, dtype=torch.float32, device=parameter.device)
            self.adamw.state[parameter] = {"step": step, **moments}
        self.schedule_step = state["schedule_step"]
        self.skipped = state["skipped"]
        self.scale.load_state_dict(state.get("scale", {}))
        self._set_lr()

    def _apply(self, gradients: list[Tensor], norm: Tensor) -> None:
        factor = torch.full_like(norm, 1.0 / self.scale.value)
        if self.grad_clip > 0:
            factor *= (self.grad_clip / (norm + 1e-6)).clamp(max=1.0)
        if self.grad_clip > 0 or self.scale.needed:
            for gradient in gradients:
                gradient.mul_(factor.to(gradient.device))
        if self.offload:
            move_moments(self.adamw.state, MOMENTS, home=True)
        self.adamw.step()
        torch.autograd.graph.increment_version(self.parameters)  # the fused kernel leaves that out
        if self.offload:
            move_moments(self.adamw.state, MOMENTS, home=False)

    def _set_lr(self) -> None:
        for group in self.adamw.param_groups:
            group["lr"] = self.lr
