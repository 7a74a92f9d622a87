"""The optimizer with its schedule, gradient clipping and loss scale; steps with a non-finite gradient are skipped.

The loss scale is for float16, whose smallest number is 6e-8: gradients of a mean over millions of tokens are below
that. The loss is multiplied by the scale before the backward pass, and gradients are divided by it before use (arXiv
1710.03740). The scale is a power of two, so both are exact. It falls after an overflow, which skips that optimizer
step, and rises after `SCALE_INTERVAL` steps without one.
"""

from contextlib import nullcontext
from dataclasses import replace
from math import isfinite
from typing import Any, Self

import torch
from torch import Tensor, nn

from agentrl.config.schema import Optim
from agentrl.core.errors import UserError
from agentrl.training.model.handle import ModelHandle
from agentrl.training.parallel.ranks import ALONE, Ranks
from agentrl.training.parallel.sharding import steps_on_cpu
from agentrl.training.parallel.shards import Shard, TensorChunk, local
from agentrl.training.perf.offload import CpuCopies
from agentrl.training.update.optimizers import make_rules
from agentrl.training.update.schedules import lr_factor

OTHER_OPTIMIZER = (
    "the checkpoint is of another optimizer: set the former one, leave the optimizer out with "
    "actor.checkpoint.load_contents=[model,extra], or start over with trainer.resume_mode=disable"
)
NOT_SHARDED = (
    "optim.optimizer={}: it keeps tensors of another shape than the parameter's, which cannot be saved from several "
    "processes: train in one, or set another optimizer"
)

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


class Optimizer:
    """The update rules of a module's trainable parameters. `advance` moves the schedule, `step` does not.

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
        key: str = "optim",
    ) -> None:
        """`model` may be sharded over `ranks`. `offload`: state and steps are on the CPU. `key`: the section `optim`
        in messages."""
        self.optim = optim
        self.ranks = ranks
        self.grad_clip = grad_clip
        self.total_steps = total_steps
        self.schedule_step = 0
        self.skipped = 0
        """Optimizer steps skipped so far because the gradient was not finite."""
        model = ModelHandle.of(model)
        self.scale = LossScale(model.compute_dtype, ranks.world)
        self.shards = model.trainable_shards()
        self.parameters = [shard.parameter for shard in self.shards.values()]
        self.copies = CpuCopies(self.parameters) if offload else None
        if any(p.dtype in (torch.bfloat16, torch.float16) for p in self.parameters):
            raise UserError(
                "parameters in half precision lose small updates: call agentrl.training.model.loading.float32_masters"
            )
        self.rules = make_rules(self._groups(model), optim, key)
        self._set_lr()

    @classmethod
    def of(cls, model: ModelHandle, actor: Any, *, total_steps: int, key: str, ranks: Ranks = ALONE) -> Self:
        """The optimizer of a section of the settings: `actor`, or one with the same keys."""
        given: Any = {"grad_clip": actor.grad_clip, "offload": steps_on_cpu(actor.fsdp_config, ranks)}
        return cls(model, actor.optim, total_steps=total_steps, ranks=ranks, key=key, **given)

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self.optim.lr * lr_factor(self.optim, self.schedule_step, self.total_steps)

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
        for parameter in self.parameters:
            parameter.grad = None

    def configure(self, lr: float, weight_decay: float, grad_clip: float, **numbers: Any) -> None:
        """Set the learning rate (where no schedule changes it), decay and clipping of later steps, and other `numbers`
        of the rules that have them, such as betas."""
        self.optim, self.grad_clip = replace(self.optim, lr=lr), grad_clip
        for group in self._rule_groups:
            given = numbers | {"weight_decay": weight_decay if group["decays"] else 0.0}
            group.update({name: value for name, value in given.items() if name in group})
        self._set_lr()

    def advance(self) -> None:
        """Move to the schedule's next step."""
        self.schedule_step += 1
        self._set_lr()

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers of the rules by parameter, the schedule's step, the loss scale."""
        held = {name: self._state(shard.parameter) for name, shard in self.shards.items()}
        # A rank without elements of a parameter has no moments of it, but all ranks must save the same numbers.
        kinds = self.ranks.merge({name: _kinds(state) for name, state in held.items() if state})
        moments: dict[str, dict[str, TensorChunk]] = {}
        numbers: dict[str, dict[str, float]] = {}
        for name in filter(kinds.__contains__, self.shards):
            for moment in kinds[name][0]:
                moments.setdefault(moment, {})[name] = self._chunk(self.shards[name], held[name].get(moment))
            for kind, number in kinds[name][1].items():
                numbers.setdefault(kind, {})[name] = number
        progress = {"schedule_step": self.schedule_step, "skipped": self.skipped, "scale": self.scale.state_dict()}
        return {"moments": moments, "numbers": numbers, **progress}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint; learning rate and decay stay those of the configuration. Raises UserError where it is
        of another optimizer."""
        moments, numbers = state["moments"], state.get("numbers") or {"step": state.get("steps", {})}
        self._make_state({name for found in (*moments.values(), *numbers.values()) for name in found})
        for name, shard in self.shards.items():
            mine = self._state(shard.parameter)
            if mine and _kinds(mine)[0] != [moment for moment in sorted(moments) if name in moments[moment]]:
                raise UserError(OTHER_OPTIMIZER)
            for kind, value in mine.items():
                if _is_tensor(value):
                    self._fill(shard, value, moments[kind][name])
                elif name in numbers.get(kind, {}):
                    number = numbers[kind][name]
                    mine[kind] = torch.full_like(value, number) if isinstance(value, Tensor) else type(value)(number)
        self.schedule_step = state["schedule_step"]
        self.skipped = state["skipped"]
        self.scale.load_state_dict(state.get("scale", {}))
        self._set_lr()

    def _groups(self, model: ModelHandle) -> list[dict[str, Any]]:
        """Parameters by what becomes of them: matrices of blocks, other weights, norms and biases."""
        inner = {id(p) for _, block in model.blocks() for p in block.parameters()}
        found: list[list[Any]] = [[], [], []]
        for shard in self.shards.values():
            matrix = len(shard.shape) == 2 and id(shard.parameter) in inner and shard.shape[0] >= self.ranks.world
            found[0 if matrix else 1 if len(shard.shape) >= 2 else 2].append(self._stepped(shard.parameter))
        decays = self.optim.weight_decay, self.optim.weight_decay, 0.0
        return [
            {"params": params, "weight_decay": decay, "matrices": number == 0, "decays": number < 2}
            for number, (params, decay) in enumerate(zip(found, decays, strict=True))
        ]

    def _stepped(self, parameter: Any) -> Any:
        """The tensor that the rules update in place of a parameter."""
        return parameter if self.copies is None else self.copies.of[parameter]

    def _state(self, parameter: Any) -> dict[str, Any]:
        parameter = self._stepped(parameter)
        return next((rule.state[parameter] for rule in self.rules if parameter in rule.state), {})

    def forget(self) -> None:
        """Have the rules start without any moments."""
        for rule in self.rules:
            if not isinstance(rule, torch.optim.Adagrad):
                rule.state.clear()
            for state in rule.state.values():  # which PyTorch 2.11 makes once, and never again
                state["step"].zero_()
                state["sum"].fill_(rule.defaults["initial_accumulator_value"])

    def _make_state(self, names: set[str]) -> None:
        """Have the rules make the state of parameters, by a step without effect."""
        self.forget()
        self._set_lr(0.0)
        for name in names:
            parameter = self.shards[name].parameter
            parameter.grad = torch.zeros_like(parameter) if local(parameter).numel() else None
        self._step_rules()
        self.clear()

    def _chunk(self, shard: Shard, tensor: Any) -> TensorChunk:
        """A rank's chunk of a moment; None: it has none."""
        if tensor is None or tuple(tensor.shape) == tuple(shard.parameter.shape):
            return shard.local_chunk(tensor if tensor is None else plain(tensor))
        if self.ranks.world > 1:
            raise UserError(NOT_SHARDED.format(self.optim.optimizer))
        return TensorChunk(tuple(tensor.shape), 0, tensor.detach().reshape(-1))

    def _fill(self, shard: Shard, tensor: Any, saved: Any) -> None:
        if tuple(tensor.shape) == tuple(shard.parameter.shape):
            shard.fill(tensor, saved)
        else:
            tensor.copy_(saved.read(0, tensor.numel()).view(tensor.shape))

    def _apply(self, gradients: list[Tensor], norm: Tensor) -> None:
        factor = torch.full_like(norm, 1.0 / self.scale.value)
        if self.grad_clip > 0:
            factor *= (self.grad_clip / (norm + 1e-6)).clamp(max=1.0)
        if self.grad_clip > 0 or self.scale.needed:
            for gradient in gradients:
                gradient.mul_(factor.to(gradient.device))
        self._step_rules()

    def _step_rules(self) -> None:
        with self.copies.updated() if self.copies is not None else nullcontext():
            for rule in self.rules:
                rule.step()
        torch.autograd.graph.increment_version(self.parameters)  # the fused kernel leaves that out

    @property
    def _rule_groups(self) -> list[dict[str, Any]]:
        return [group for rule in self.rules for group in rule.param_groups]

    def _set_lr(self, lr: float | None = None) -> None:
        lr = self.lr if lr is None else lr
        for group in self._rule_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)  # torchao compiles with it
            else:
                group["lr"] = lr


def plain(tensor: Any) -> Any:
    """This rank's part of a moment in ordinary numbers, from which the same 8 bits are made again."""
    inner: Any = local(tensor)
    if not hasattr(inner, "codes"):
        return inner
    values: Tensor = inner.dequantize()
    if inner.signed:  # the lowest of its codes stands for less than the block's scale
        scale = inner.scale.repeat_interleave(inner.block_size).view(values.shape)
        values = torch.where(inner.codes == 0, -scale, values)
    return values


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _kinds(state: dict[str, Any]) -> tuple[list[str], dict[str, float]]:
    """(names of the tensors, the numbers) of a parameter's state."""
    numbers = {kind: float(value) for kind, value in state.items() if value is not None and not _is_tensor(value)}
    return sorted(kind for kind, value in state.items() if _is_tensor(value)), numbers
