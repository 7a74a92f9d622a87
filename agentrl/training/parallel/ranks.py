"""The ranks that train one model together, as one of them sees it.

Two dimensions: `data_world` shares of a mini-batch, and per share a group of `seq_world` ranks that split
its tokens (sequence parallelism). rank = data_rank * seq_world + seq_rank. Model and optimizer are sharded over all
ranks. Every method is collective: all ranks call it in the same order. With one rank all methods are free and need no
torch.distributed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from agentrl.core.errors import InfraError

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """One process among `world`; `training.parallel.join_ranks` makes it for more than one."""

    rank: int = 0
    """Number of this process."""
    world: int = 1
    """Number of processes."""
    seq_world: int = 1
    """Ranks that split the tokens of a micro-batch."""
    mesh: Any = None
    """DeviceMesh of the parameters: (shard) or (replicate, shard). None: they are not sharded."""
    expert_mesh: Any = None
    """DeviceMesh of the experts: (replicate, shard, experts). None: every rank computes all experts."""
    seq_group: Any = None
    """Process group of the ranks that split tokens."""
    background_group: Any = None
    """Process group of all ranks for work in the background: writing checkpoints."""

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes shared files."""
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """Index of this rank's share of a mini-batch."""
        return self.rank // self.seq_world

    @property
    def data_world(self) -> int:
        """Number of shares of a mini-batch."""
        return self.world // self.seq_world

    @property
    def seq_rank(self) -> int:
        """Index of this rank's part of a micro-batch's tokens."""
        return self.rank % self.seq_world

    @property
    def expert_rank(self) -> int:
        """Index of this rank's part of a layer's experts."""
        return 0 if self.expert_mesh is None else int(self.expert_mesh.get_local_rank("experts"))

    @property
    def leads(self) -> bool:
        """Whether this rank reports the results of its share: the first of its sequence group does."""
        return self.seq_rank == 0

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        """The sum over shares, in place; of the ranks that split a share's tokens, the first one's counts."""
        if self.world > 1:
            if not self.leads:
                tensor.zero_()
            torch.distributed.all_reduce(tensor)
        return tensor

    def sum(self, number: float) -> float:
        """The sum of a number over shares."""
        return float(self.sum_over_ranks(torch.tensor(number, dtype=torch.float64))) if self.world > 1 else number

    def max_over_ranks(self, number: int) -> int:
        """The largest number of all ranks."""
        if self.world == 1:
            return number
        found = torch.tensor(number)
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        return int(found)

    def gather(self, value: T) -> list[T]:
        """Plain data of every share, in order."""
        return self._of_all(value)[:: self.seq_world]

    def merge(self, values: dict[str, T], *, background: bool = False) -> dict[str, T]:
        """The union of all ranks' values; where several have a name, the lowest rank's value. `background`: in that
        group."""
        parts = self._of_all(values, self.background_group if background else None)
        return {name: value for part in reversed(parts) for name, value in part.items()}

    def broadcast(self, value: T) -> T:
        """Plain data of the first rank, on every rank."""
        if self.world == 1:
            return value
        values = [value]
        torch.distributed.broadcast_object_list(values, src=0)
        return values[0]

    def attempt(self, function: Callable[[], T]) -> T:
        """`function()`; where it fails on one rank it fails on all, and none goes on before all have ended it. Uses the
        background group."""
        error: Exception | None = None
        try:
            result = function()
        except Exception as caught:  # for example a full disk: the other ranks must not wait for this one
            error = caught
        errors = self._of_all(None if error is None else str(error), self.background_group)
        error = error or next((InfraError(f"rank {i}: {e}") for i, e in enumerate(errors) if e is not None), None)
        if error is not None:
            raise error
        return result

    def _of_all(self, value: T, group: Any = None) -> list[T]:
        """Plain data of every rank, in order."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(values, value, group=group)
        return values

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """The 2-norm, f32, of a gradient of which each rank holds shards (plain tensors)."""
        norm = torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())
        if self.mesh is None:
            return norm
        square = norm.to(self.mesh.device_type).double().square()
        torch.distributed.all_reduce(square, group=self.mesh.get_group("shard"))
        return square.sqrt().float()


ALONE = Ranks()
"""A single process."""
