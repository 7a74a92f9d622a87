"""The load of experts in the passes of an update: its metrics, its loss, and the bias that evens it out.

Invariants: only passes with a gradient count; nothing is read from the device before the end of an update.
"""

from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.config.schema.actor import Router
from agentrl.core.errors import UserError
from agentrl.training.model.experts import balance_loss, expert_layers, routers_of, stacked_weights, tokens_per_expert
from agentrl.training.model.handle import ModelHandle
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.shards import Shard, local


class ExpertLoad:
    """Counts the tokens of each expert of a model, by hooks on its expert layers; a dense model has none."""

    def __init__(self, model: ModelHandle, router: Router | None, device: torch.device, ranks: Ranks) -> None:
        """`router`: None: nothing is counted. Raises UserError where the model lacks what a key of it needs."""
        layers, shapes = expert_layers(model.module) if router else {}, model.whole_shapes
        self.router, self.ranks = (router := router or Router()), ranks
        experts = {n: max(shapes[f"{n}.{own}"][0] for own in stacked_weights(layer)) for n, layer in layers.items()}
        self._counts = torch.zeros(len(layers), max(experts.values(), default=0), dtype=torch.int64, device=device)
        self._totals = self._counts.clone()
        self._counted: Tensor | bool = True
        self._tokens = 0
        self._logits: Tensor | None = None
        self._loss = self._no_loss = torch.zeros((), device=device)
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._steps = 0
        for row, layer in zip(self._counts, layers.values(), strict=True):
            layer.register_forward_pre_hook(partial(self._count, row))
        self._biases = [_bias(model, *layer) for layer in experts.items()] if router.bias_update else []
        if router.bias_update and (model.adapted or router.freeze):
            raise UserError("actor.router.bias_update: adapters do not have the bias, frozen routers keep it")
        if router.bias_update and not any(self._biases):
            raise _lacks(model, "bias_update", "bias beside its router's weights")
        if router.aux_loss_coef and not routers_of(model.module):
            raise _lacks(model, "aux_loss_coef", "router")
        for part, index in routers_of(model.module) if router.aux_loss_coef else ():
            part.register_forward_hook(partial(self._keep, index))

    def begin_pass(self, mask: Tensor) -> None:
        """Forget the load-balancing loss of earlier passes, and of layers that a backward pass computed again; a pass
        without trained tokens (`mask` bool [T]) does not count: it only runs the collectives."""
        self._loss = self._no_loss
        self._counted, self._tokens = mask.any(), len(mask)

    def loss(self, tokens: int, share: Tensor) -> Tensor:
        """The load-balancing loss of a pass of `tokens`, the mean over layers, times its `share` of the mini-batch."""
        loss = self._loss * share / max(tokens * len(self._counts), 1)
        self._loss_sum += loss.detach()
        return self.router.aux_loss_coef * loss

    def clear(self) -> None:
        """Forget the passes since the last optimizer step."""
        self._counts.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """End an optimizer step: the routers' biases move (arXiv 2408.15664). Collective."""
        self._totals += self._summed(self._counts)
        self._steps += 1
        missing = (self._counts.double().mean(1, keepdim=True) - self._counts).sign()
        for row, shard in zip(missing, self._biases, strict=False):
            if shard is not None:
                own = local(shard.parameter)
                own += (self.router.bias_update * row[shard.start :][: own.numel()]).view_as(own).to(own.dtype)
        self.clear()

    def metrics(self) -> dict[str, float]:
        """The metrics of the optimizer steps since the last call; none of a dense model. Collective."""
        totals, loss = self._totals.double(), self._summed(self._loss_sum / max(self._steps, 1))
        self._totals.zero_()
        self._loss_sum.zero_()
        self._steps = 0
        if not totals.numel():
            return {}
        largest = totals.amax(1) / totals.mean(1).clamp(min=1e-9)
        figures = torch.stack([largest.mean(), largest.max(), (totals == 0).double().mean(), loss]).tolist()
        named = zip(("max_load", "max_load_worst", "dead_experts", "aux_loss"), figures, strict=True)
        return {f"router/{name}": figure for name, figure in named if name != "aux_loss" or self.router.aux_loss_coef}

    def _summed(self, figures: Tensor) -> Tensor:
        """The sum over ranks, in place: each has seen other tokens."""
        if self.ranks.world > 1 and len(self._counts):
            torch.distributed.all_reduce(figures)
        return figures

    def _count(self, row: Tensor, layer: nn.Module, given: tuple[Any, ...]) -> None:
        if not torch.is_grad_enabled():
            return
        real = max(self._tokens - self.ranks.seq_rank * len(given[-1]), 0)  # the last tokens may only fill up the row
        counts = tokens_per_expert(given if len(given) == 1 else (given[0], given[1][:real]), len(row))
        row += counts * self._counted
        if self._logits is not None:
            self._loss = self._loss + balance_loss(self._logits.flatten(0, -2)[:real], counts)
            self._logits = None

    def _keep(self, index: int, router: nn.Module, given: Any, made: Any) -> None:
        self._logits = (made[index] if isinstance(made, tuple) else made) if torch.is_grad_enabled() else None


def freeze_routers(model: ModelHandle) -> None:
    """Freeze the routers. Raises UserError where the model has none."""
    routers = routers_of(model.module)
    if not routers:
        raise _lacks(model, "freeze", "router")
    for router, _ in routers:
        router.requires_grad_(False)


def _bias(model: ModelHandle, layer: str, experts: int) -> Shard | None:
    """The numbers, one for each expert of a layer, that are beside it and get no gradient; None: there are none."""
    beside = layer.rpartition(".")[0] + "."
    found = (s for name, s in model.fixed_shards().items() if name.startswith(beside) and prod(s.shape) == experts)
    return next((shard for shard in found if shard.parameter.is_floating_point()), None)


def _lacks(model: ModelHandle, key: str, part: str) -> UserError:
    return UserError(f"actor.router.{key}: a {type(model.base).__name__} has no {part}; remove it")
