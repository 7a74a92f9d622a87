"""AdamW whose moments have 16 bits."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from agentrl.training.parallel.shards import local

MOMENTS = ("exp_avg", "exp_avg_sq")
CHUNK = 1 << 25
"""Most elements whose moments are in float32 at one time."""


class AdamW16bit(torch.optim.Optimizer):
    """AdamW (arXiv 1711.05101) with moments in bfloat16, rounded up or down at random (arXiv 2010.06192).

    A step changes the second moment by less than bfloat16 can show: rounded to the nearest, it would never fall. The
    random numbers follow from the step, so a resumed run repeats them.
    """

    def __init__(
        self, params: Any, *, lr: float, betas: tuple[float, float], eps: float = 1e-8, weight_decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update the parameters that have a gradient."""
        work = [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for number, (group, parameter) in enumerate(work):
            state = self.state[parameter]
            if not state:
                state |= {name: torch.zeros_like(parameter, dtype=torch.bfloat16) for name in MOMENTS}
                state["step"] = torch.zeros(())
            tensors = [local(tensor) for tensor in (parameter, parameter.grad, *(state[name] for name in MOMENTS))]
            draw = torch.Generator(tensors[0].device).manual_seed(int(state["step"]) * len(work) + number)
            for chunk in zip(*(tensor.view(-1).split(CHUNK) for tensor in tensors), strict=True):
                _update(*chunk, step=state["step"], draw=draw, **group)
            state["step"] += 1


def _update(
    parameter: Tensor,
    gradient: Tensor,
    *moments: Tensor,
    step: Tensor,
    draw: torch.Generator,
    betas: tuple[float, float],
    **options: Any,
) -> None:
    numbers = {name: options[name] for name in ("lr", "eps", "weight_decay")}
    first, second = wide = [moment.float() for moment in moments]
    steps = [step.to(parameter.device, copy=True)]  # the kernel counts it up
    flags = {"fused": True, "amsgrad": False, "maximize": False}
    adamw([parameter], [gradient], [first], [second], [], steps, beta1=betas[0], beta2=betas[1], **numbers, **flags)
    for moment, values in zip(moments, wide, strict=True):
        moment.copy_(rounded_at_random(values, draw))


def rounded_at_random(values: Tensor, draw: torch.Generator) -> Tensor:
    """Values f32 as the nearest bfloat16 above or below, the nearer the likelier: f32 of the same mean."""
    bits = values.view(torch.int32)
    noise = torch.randint(1 << 16, bits.shape, generator=draw, dtype=torch.int32, device=bits.device)
    return (noise.add_(bits) & -65536).view(torch.float32)
