"""A model whose parameters are sharded over ranks (FSDP, arXiv 2304.11277) by PyTorch's `fully_shard`.

Each parameter is a DTensor, split along its first dimension.

Invariants:
- a unit (a transformer block, or the rest of the model) is gathered on a rank only while it computes, while `units`
  yields it, and while the model is loaded: rank 0 reads the weights and sends them to the others;
- parameters are gathered only in functions that `run_gathered` runs; without autograd they are sharded again after it,
  so no rank computes with weights from before an optimizer step;
- names are those of the plain model.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from agentrl.core.errors import UserError
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.shards import Shard, saved_buffers

T = TypeVar("T")
Names = list[str]


class FsdpRoot(nn.Module):
    """FSDP's root: its forward runs a function with the parameters gathered."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[[], T]) -> T:
        return function()


class ShardedModel:
    """A sharded model with the attributes of the plain one; compute with it in `run_gathered`."""

    def __init__(
        self,
        module: nn.Module,
        root: Any,
        units: list[tuple[Any, Names]],
        shapes: dict[str, torch.Size],
        ranks: Ranks,
    ) -> None:
        """`units`: FSDP's modules, inner ones first, each with the names of its own parameters."""
        self.module = module
        self.root = root
        self.ranks = ranks
        self.written = ranks.mesh.ndim == 1 or ranks.mesh.get_local_rank("replicate") == 0
        self._units = units
        self._shapes = shapes
        self.keeps_gathered = False
        """Whether GPU memory is enough for all gathered units and their gradients."""
        self.compute_dtype: torch.dtype | None = None
        """The dtype that layers compute in; None: the parameters' own."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "module" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.module, name)

    @property
    def whole_shapes(self) -> dict[str, torch.Size]:
        """Unsharded shape of each parameter, by its plain name."""
        return self._shapes

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """This rank's parameters by name."""
        return iter(self.module.named_parameters())

    def run_gathered(self, function: Callable[[], T]) -> T:
        """`function()`, which may run any part of the model. Collective."""
        result: T = self.root(function)
        if not torch.is_grad_enabled():
            self._reshard()
        return result

    def move(self, device: torch.device) -> None:
        """Move this rank's shards to another device; the model must not run before they are back."""
        self._reshard()
        self.root.to(device)

    def set_no_sync(self, on: bool) -> None:
        """`on`: backward passes leave units gathered and gradients unreduced, where `keeps_gathered` is set.

        Switch it off before the last micro-batch of an optimizer step.
        """
        if self.keeps_gathered:
            self.root.set_reshard_after_backward(not on)
            self.root.set_requires_gradient_sync(not on)

    def units(self) -> Iterator[dict[str, Tensor]]:
        """Every whole parameter and saved buffer by name, one unit at a time; valid until the next unit.

        Collective: all ranks iterate to the end.
        """
        for _, names in self._units:
            with self._gathered(names):
                tensors = {name: self._owner(name)._parameters[name.rpartition(".")[2]] for name in names}
                yield {name: tensor.detach() for name, tensor in tensors.items() if tensor is not None}
        yield saved_buffers(self.module)

    def shards(self) -> dict[str, Shard]:
        """This rank's shard of each parameter: some of its rows, maybe none."""
        return {
            name: Shard(parameter, tuple(parameter.shape), _start(parameter), self.written)
            for name, parameter in self.named_parameters()
        }

    def _owner(self, name: str) -> nn.Module:
        return self.module.get_submodule(name.rpartition(".")[0])

    def _reshard(self) -> None:
        for unit, _ in self._units:
            unit.reshard()

    @contextmanager
    def _gathered(self, names: Names) -> Iterator[None]:
        places = [(self._owner(name)._parameters, name.rpartition(".")[2]) for name in names]
        sharded: list[Any] = [place[leaf] for place, leaf in places]
        with torch.no_grad():
            for (place, leaf), tensor in zip(places, sharded, strict=True):
                place[leaf] = nn.Parameter(tensor.full_tensor(), requires_grad=False)
        try:
            yield
        finally:
            for (place, leaf), tensor in zip(places, sharded, strict=True):
                place[leaf] = tensor


def wrapper(fsdp_config: Any, mesh: Any, dtypes: tuple[torch.dtype | None, torch.dtype], *, offload: bool) -> Any:
    """A function that shards one unit in place; `dtypes`: of computation (None: as stored) and of gradient
    reduction."""
    settings: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": fsdp_config.reshard_after_forward}
    settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtypes[0], reduce_dtype=dtypes[1])
    if offload:
        settings["offload_policy"] = CPUOffloadPolicy()
    return lambda unit: fully_shard(unit, **settings)


def _start(parameter: Any) -> int:
    _, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return offset[0] * prod(parameter.shape[1:]) if parameter.ndim else 0


def blocks(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules to shard as units, the transformer blocks by name, inner ones first."""
    kinds = {kind for part in module.modules() for kind in getattr(part, "_no_split_modules", None) or ()}
    return [(name, child) for name, child in reversed(list(module.named_modules())) if type(child).__name__ in kinds]


class WeightLoader:
    """Loads a model on the meta device with the weights that the first rank reads."""

    def __init__(self, skeleton: nn.Module, source: nn.Module | None, ranks: Ranks, device: torch.device) -> None:
        """`source`: the same model with weights, on the first rank. Raises UserError where ranks see other models."""
        self.ranks = ranks
        self.device = device
        self.source = dict(_tensors(source)) if source is not None else {}
        self.kinds = ranks.broadcast({name: (tensor.shape, tensor.dtype) for name, tensor in self.source.items()})
        names = dict(_tensors(skeleton))
        if {name: tensor.shape for name, tensor in names.items()} != {n: shape for n, (shape, _) in self.kinds.items()}:
            raise UserError("model.path: ranks do not see the same model; give every node the same files")
        self.names = {id(tensor): name for name, tensor in names.items()}
        self.shapes = {name: tensor.shape for name, tensor in names.items()}
        self._made: dict[int, Any] = {}

    def fill(self, unit: nn.Module) -> Names:
        """Create the missing tensors of a unit, whole on every rank; returns the names of its parameters.

        Parameters that several modules share stay shared.
        """
        filled = []
        places: list[dict[str, Any]] = [p for owner in unit.modules() for p in (owner._parameters, owner._buffers)]
        for place, leaf, tensor in [(p, *item) for p in places for item in p.items()]:
            if tensor is None or tensor.device.type != "meta":
                continue
            if id(tensor) not in self._made and isinstance(tensor, nn.Parameter):
                filled.append(self.names[id(tensor)])
            place[leaf] = self._make(tensor)
        return filled

    def _make(self, tensor: Any) -> Any:
        # The meta tensor is kept alive: a new tensor must not get its id.
        if id(tensor) not in self._made:
            name = self.names[id(tensor)]
            values = self._received(name)
            made = nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values
            self._made[id(tensor)] = (tensor, made)
        return self._made[id(tensor)][1]

    @torch.no_grad()
    def _received(self, name: str) -> Tensor:
        shape, dtype = self.kinds[name]
        if self.ranks.first:
            own = self.source.pop(name)
            values = own.detach().to(self.device, copy=True)
            own.data = own.data.new_empty(0)  # frees memory: rank 0 never has the model twice
        else:
            values = torch.empty(shape, dtype=dtype, device=self.device)
        dist.broadcast(values, src=0)
        return values


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
