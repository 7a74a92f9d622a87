"""A model whose parameters are sharded over ranks (FSDP, arXiv 2304.11277) by PyTorch's `fully_shard`.

Each parameter is a DTensor, split along its first dimension.

Invariants:
- a unit (a transformer block, or the rest of the model) is gathered on a rank only while it computes, and while
  `units` yields it or the one before; each rank reads its own shards of the model's files;
- parameters are gathered only in functions that `run_gathered` runs; without autograd they are sharded again after it,
  so no rank computes with weights from before an optimizer step;
- names are those of the plain model.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from math import prod
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from agentrl.core.errors import UserError
from agentrl.core.replaced import replaced
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.lazy_tensors import LazyTensor
from agentrl.training.parallel.experts import gather_experts
from agentrl.training.parallel.gathering import Gathering
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.shards import Shard, local

T = TypeVar("T")
Names = list[str]


class FsdpRoot(nn.Module):
    """FSDP's root: its forward runs a function with the parameters gathered."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[[], T]) -> T:
        return function()


class ShardedModel(ModelHandle):
    """A model whose parameters are sharded over ranks; compute with it in `run_gathered`."""

    sharded = True

    def __init__(
        self,
        whole: ModelHandle,
        root: Any,
        units: list[tuple[Any, Names]],
        shapes: dict[str, torch.Size],
        ranks: Ranks,
        split: Names,
        compute_dtype: torch.dtype | None,
        *,
        keeps_gathered: bool,
    ) -> None:
        """`whole`: its network has become `root`. `units`: FSDP's modules, inner ones first, each with the names of its
        own parameters. `split`: the parameters whose experts ranks split. `keeps_gathered`: GPU memory is enough for
        all gathered units and their gradients.
        """
        vars(self).update(vars(whole))
        self.compute_dtype = compute_dtype
        self.root = root
        self.ranks = ranks
        self.written = ranks.mesh.ndim == 1 or ranks.mesh.get_local_rank("replicate") == 0
        self.keeps_gathered = keeps_gathered
        self._units = units
        self._shapes = shapes
        self._split = frozenset(split)

    @property
    def whole_shapes(self) -> dict[str, torch.Size]:
        return self._shapes

    def use_compute_copies(self) -> None:
        """Do nothing: FSDP gathers parameters in the dtype to compute in."""

    def _run(self, function: Callable[[], T]) -> T:
        result: T = self.root(function)
        if not torch.is_grad_enabled():
            self._reshard()
        return result

    def recover(self) -> None:
        self.root(lambda: None)  # ends the pass that FSDP believes to be in
        self.root.set_reshard_after_forward(True)
        for unit, _ in self._units:
            unit.unshard()  # completes a gathering that has begun
            unit.reshard()
        self.root.set_reshard_after_forward(not self.keeps_gathered)

    def move(self, device: torch.device | str) -> None:
        """Move this rank's shards to another device; the model must not run before they are back."""
        self._reshard()
        self.root.to(device)

    def place(self, parameters: dict[str, Any]) -> None:
        if parameters:
            self._reshard()
            super().place(parameters)
            self.root._apply(lambda tensor: tensor)  # FSDP reads again which parameters there are

    def set_no_sync(self, on: bool) -> None:
        """`on`: backward passes leave units gathered and gradients unreduced, where `keeps_gathered` is set.

        Switch it off before the last micro-batch of an optimizer step.
        """
        if self.keeps_gathered:
            self.root.set_reshard_after_backward(not on)
            self.root.set_requires_gradient_sync(not on)

    def described(self, network: Any) -> AbstractContextManager[None]:
        sharded = [item for item in network.named_parameters(remove_duplicate=False) if isinstance(item[1], DTensor)]
        return _replaced(network, {name: torch.empty(p.shape, dtype=p.dtype, device="meta") for name, p in sharded})

    def with_adapter(self, network: Any) -> ModelHandle:
        return WithAdapter(self, network)

    def units(self, dtype: torch.dtype | None = None) -> Iterator[dict[str, Tensor]]:
        """Every whole parameter, in `dtype`, and saved buffer by name, one unit at a time; valid until the next unit,
        which is gathered meanwhile. Collective."""
        gatherings = (Gathering([self.module.get_parameter(n) for n in names], dtype) for _, names in self._units)
        coming = deque(islice(gatherings, 1))
        for _, names in self._units:
            found = dict(zip(names, coming.popleft().wait(), strict=True))
            coming.extend(islice(gatherings, 1))
            whole = {n: gather_experts(t, self.ranks) if n in self._split else t for n, t in found.items()}
            with _replaced(self.module, whole):
                yield whole
        yield self.saved_buffers()

    def shards(self) -> dict[str, Shard]:
        """This rank's chunk of each parameter: some of its rows, maybe none."""
        parts = dict.fromkeys(self._split, self.ranks.expert_rank)
        return {
            name: Shard(parameter, tuple(self._shapes[name]), _start(parameter, parts.get(name, 0)), self.written)
            for name, parameter in self.module.named_parameters()
        }

    @torch.no_grad()
    def gather_trainable(self) -> dict[str, Tensor]:
        """The whole trainable parameters, by one collective."""
        shards = self.trainable_shards()
        return dict(zip(shards, Gathering([shard.parameter for shard in shards.values()]).wait(), strict=True))

    def _reshard(self) -> None:
        for unit, _ in self._units:
            unit.reshard()


class WithAdapter(ShardedModel):
    """A sharded model with an adapter that it got later: only its base is sharded."""

    def __init__(self, base: ShardedModel, network: Any) -> None:
        vars(self).update(vars(base), module=network, adapted=True)

    shards = ModelHandle.shards
    gather_trainable = ModelHandle.gather_trainable
    use_compute_copies = ModelHandle.use_compute_copies


def _replaced(module: nn.Module, whole: dict[str, Tensor]) -> AbstractContextManager[None]:
    """While the body runs, the module has these parameters."""
    places = ((*name.rpartition("."), nn.Parameter(tensor, requires_grad=False)) for name, tensor in whole.items())
    return replaced((module.get_submodule(owner)._parameters, leaf, own) for owner, _, leaf, own in places)


def wrapper(
    fsdp_config: Any, mesh: Any, dtypes: tuple[torch.dtype | None, torch.dtype], *, offload: bool, casts: bool = True
) -> Any:
    """A function that shards one unit in place; `dtypes`: of computation (None: as stored) and of gradient
    reduction. `casts`: its inputs are cast to the dtype of computation."""
    precision = MixedPrecisionPolicy(param_dtype=dtypes[0], reduce_dtype=dtypes[1], cast_forward_inputs=casts)
    settings: dict[str, Any] = {"offload_policy": CPUOffloadPolicy()} if offload else {}
    settings |= {"mesh": mesh, "mp_policy": precision, "reshard_after_forward": fsdp_config.reshard_after_forward}
    return lambda unit: fully_shard(unit, **settings)


def _start(parameter: Any, part: int) -> int:
    return _box(parameter, part)[0].start * prod(parameter.shape[1:]) if parameter.ndim else 0


class WeightLoader:
    """Gives the units of a model their weights: each rank reads its shards of lazy tensors, the first sends the others.

    A tensor that is not lazy, such as a new adapter or a table that the model computes, has values on the first rank.
    """

    def __init__(self, module: nn.Module, ranks: Ranks, device: torch.device) -> None:
        """Raises UserError where ranks see other models."""
        self.module, self.ranks, self.device = module, ranks, device
        # The old tensors are kept alive: a new tensor must not get the id of one.
        self.tensors: dict[str, Tensor] = dict([*module.named_parameters(), *module.named_buffers()])
        self.shapes = {name: tensor.shape for name, tensor in self.tensors.items()}
        if ranks.broadcast(self.shapes) != self.shapes:
            raise UserError("model.path: ranks do not see the same model; give every node the same files")
        self.names = {id(tensor): name for name, tensor in self.tensors.items()}
        self._made: dict[str, Any] = {}

    def fill(self, unit: nn.Module) -> Names:
        """Put the tensors of a unit on the device, whole; what `read` reads is on the meta device until then.

        Returns the names of its parameters. Parameters that several modules share stay shared.
        """
        filled = []
        owners: list[dict[str, Any]] = [p for owner in unit.modules() for p in (owner._parameters, owner._buffers)]
        for owner, leaf, tensor in [(p, *item) for p in owners for item in p.items()]:
            name = self.names.get(id(tensor))
            if name is None:
                continue
            if name not in self._made:
                self._made[name] = values = self._values(name)
                if isinstance(tensor, nn.Parameter):
                    self._made[name] = nn.Parameter(values, tensor.requires_grad)
                    filled.append(name)
            owner[leaf] = self._made[name]
        return filled

    @torch.no_grad()
    def read(self, unit: Any, names: Names, *, part: int = 0) -> None:
        """Read this rank's shards of a sharded unit from the model's files; `names`: of the unit's parameters, each of
        which is the part of this number of the one in the files."""
        unit._apply(lambda tensor: torch.empty_like(tensor, device=self.device) if tensor.is_meta else tensor)
        for name in names:
            parameter: Any = self.module.get_parameter(name)
            source = self.tensors[name]
            if isinstance(source, LazyTensor) and local(parameter).numel():
                local(parameter).copy_(source.compute(_box(parameter, part)).to(self.device))  # it casts there

    @torch.no_grad()
    def _values(self, name: str) -> Tensor:
        tensor = self.tensors[name]
        if isinstance(tensor, LazyTensor) and isinstance(tensor, nn.Parameter):
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        if isinstance(tensor, LazyTensor):
            return tensor.whole().to(self.device, copy=True)
        values = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
        if self.ranks.first:
            values.copy_(tensor)
            tensor.data = tensor.data.new_empty(0)  # frees memory: rank 0 never has the model twice
        dist.broadcast(values, src=0)
        return values


def _box(parameter: Any, part: int = 0) -> tuple[slice, ...]:
    """This rank's rows of a parameter that is itself the part of this number of a longer one."""
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    offset = (offset[0] + part * len(parameter), *offset[1:]) if part else offset
    return tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
