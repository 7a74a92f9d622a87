"""Expert parallelism: ranks of an expert group split the experts of each layer, and compute them for all their tokens.

Each rank sends its tokens to the owners of their experts, computes its own experts for the tokens that it receives, and
gets the results of its tokens back: two all-to-alls a layer. The experts of a layer are an FSDP unit, sharded over the
ranks with the same experts; the rest of a block is sharded over all ranks.

transformers has dispatch plans of its own for this, which name the experts of each family and come with their own
loading, sharding and saving. Here the arguments of its experts interface, (tokens, experts, weights), are all that is
needed: that serves every family whose experts go through the interface, leaves sharding, checkpoints and weights to the
code that does them for other models, and needs no host synchronisation but that for the sizes of an exchange.

Invariants:
- all ranks of a group run the same operations, also one that has no tokens or receives none;
- values equal those of one process, up to rounding; tokens and results travel in the dtype that layers compute in;
- a rank's experts are consecutive, so its chunk of a stacked weight is contiguous.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from agentrl.core.errors import UserError
from agentrl.training.model.grouped_experts import grouped_experts
from agentrl.training.model.handle import ModelHandle
from agentrl.training.parallel.ranks import Ranks

Way = Callable[[Tensor], Tensor]
"""Moves rows to other ranks, or back."""


def split_layers(model: ModelHandle, ranks: Ranks) -> list[nn.Module]:
    """The layers of experts that `ranks` split; none without expert parallelism.

    Raises UserError where the model has none, or they cannot be split.
    """
    if ranks.expert_mesh is None:
        return []
    found = {name: part for name, part in model.module.named_modules() if has_interface(part)}
    size, kind = ranks.expert_mesh["experts"].size(), type(model.base).__name__
    key = f"fsdp_config.expert_parallel_size={size}"
    if not found:
        raise UserError(f"{key}: a {kind} has no experts that processes can split; set it to 1")
    for name, layer in found.items():
        if ".base_layer" in name or ".modules_to_save" in name:
            raise UserError(f"{key}: adapters of experts are trained on all of them; leave them out, or set it to 1")
        if layer.num_experts % size:
            raise UserError(f"{key} does not divide the {layer.num_experts} experts of a {kind}; choose a divisor")
        if any(len(p) != layer.num_experts for p in layer.parameters()):
            raise UserError(f"{key}: experts of a {kind} share weights, and cannot be split; set it to 1")
    return list(found.values())


def shard_experts(layer: Any, ranks: Ranks, wrap: Callable[[nn.Module], Any]) -> Any:
    """Leave a layer its rank's experts, as a unit of FSDP, and let it compute all of them with the other ranks.

    `wrap`: shards a module over the ranks with the same experts. Returns the unit.
    """
    mesh = ranks.expert_mesh["experts"]
    for name, parameter in list(layer.named_parameters(recurse=False)):
        own = parameter.detach().chunk(mesh.size())[ranks.expert_rank].clone()
        setattr(layer, name, nn.Parameter(own, parameter.requires_grad))
    unit = wrap(layer)
    # FSDP averages over the ranks of its mesh, and each one's gradient is of the tokens of the whole group.
    unit.set_all_reduce_hook(lambda gradient: gradient.div_(mesh.size()))
    layer.forward = SplitExperts(layer, mesh.get_group())
    return unit


def gather_experts(own: Tensor, ranks: Ranks) -> Tensor:
    """All experts of a stacked weight, from this rank's whole experts. Collective."""
    mesh = ranks.expert_mesh["experts"]
    whole = own.new_empty(mesh.size() * len(own), *own.shape[1:])
    dist.all_gather(list(whole.chunk(mesh.size())), own.contiguous(), group=mesh.get_group())
    return whole


@dataclass(frozen=True)
class Routes:
    """The way of a pass's (token, expert) pairs to the owners of the experts, and back."""

    order: Tensor
    """The pairs by expert, i64 [P]."""
    sent: list[int]
    """Pairs to each rank of the group."""
    received: list[int]
    """Pairs from each rank; M in all."""
    group: dist.ProcessGroup

    def deliver(self, rows: Tensor, repeats: int = 1) -> Tensor:
        """Rows [P / repeats, H] at the experts' owners: [M + 1, H]. The last one is zero: no rank has none."""
        sorted_rows = rows[self.order // repeats if repeats > 1 else self.order]
        received = rows.new_empty(sum(self.received) + 1, rows.shape[-1])
        received[-1] = 0
        dist.all_to_all_single(received[:-1], sorted_rows, self.received, self.sent, group=self.group)
        return received

    def bring_back(self, rows: Tensor, repeats: int = 1) -> Tensor:
        """Rows [M + 1, H] of the owners as rows of the pairs, summed over `repeats` of them: [P / repeats, H]."""
        sorted_rows = rows.new_empty(len(self.order), rows.shape[-1])
        dist.all_to_all_single(sorted_rows, rows[:-1].contiguous(), self.sent, self.received, group=self.group)
        back = torch.empty_like(sorted_rows)
        back[self.order] = sorted_rows
        return back.view(-1, repeats, back.shape[-1]).sum(1) if repeats > 1 else back


class SplitExperts:
    """The forward of a layer of experts that ranks split. The layer's own interface computes the rank's experts."""

    def __init__(self, layer: Any, group: dist.ProcessGroup) -> None:
        self.layer, self.group = layer, group
        self.size = dist.get_world_size(group)
        self.num_experts = layer.num_experts // self.size
        """Experts of a rank."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)

    @torch.compiler.disable
    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Sums [N, H] of the experts' results for `hidden_states` [N, H], by their weights [N, k]."""
        routes, experts = self._routes(top_k_index)
        ways = (partial(way, repeats=top_k_index.shape[-1]) for way in (routes.deliver, routes.bring_back))
        rows = _Moved.apply(hidden_states, *ways)
        results = grouped_experts(self, rows, experts[:, None], rows.new_ones(len(rows), 1))
        pairs = _Moved.apply(results, routes.bring_back, routes.deliver).view(*top_k_weights.shape, -1)
        return (pairs * top_k_weights[..., None]).sum(1).to(hidden_states.dtype)

    @torch.no_grad()
    def _routes(self, chosen: Tensor) -> tuple[Routes, Tensor]:
        """The routes of `chosen` experts [N, k], and the expert among this rank's of each row that comes in [M + 1]."""
        flat = chosen.flatten()
        counts = torch.zeros(self.size * self.num_experts, dtype=torch.long, device=flat.device)
        counts = counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.long)).view(self.size, -1)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self.group)
        sent, received = torch.stack([counts.sum(1), theirs.sum(1)]).tolist()
        theirs[-1, -1] += 1  # the last row
        experts = torch.arange(self.num_experts, device=flat.device).repeat(self.size)
        experts = experts.repeat_interleave(theirs.flatten(), output_size=sum(received) + 1)
        return Routes(flat.argsort(stable=True), sent, received, self.group), experts


class _Moved(torch.autograd.Function):
    """Rows on other ranks; their gradients come back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: Way, back: Way) -> Tensor:
        ctx.back = back
        return there(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.back(gradients[0]), None, None


def has_interface(part: nn.Module) -> bool:
    """Whether a module's experts are computed by transformers' experts interface."""
    return hasattr(part, "_apply_gate") and "is_transposed" in vars(part)
