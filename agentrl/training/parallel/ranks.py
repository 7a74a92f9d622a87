"""The processes that train one model together, as one of them sees it.

Ranks lie in two dimensions: `data_world` shares of a mini-batch, and within each share `seq_world` neighbours that
split its tokens among them (sequence parallelism). Rank = data_rank * seq_world + seq_rank. Model and optimizer are
sharded over all of them. Every method is a meeting of all ranks: each calls it, in the same order. Alone, all of them
are free, and nothing of torch.distributed is needed.
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
    """Which of them this one is."""
    world: int = 1
    """How many there are."""
    seq_world: int = 1
    """Neighbours that split the tokens of a pass among them."""
    mesh: Any = None
    """DeviceMesh over which parameters are sharded: (shard) or (replicate, shard). None: they are whole."""
    seq_group: Any = None
    """Process group of those neighbours."""
    background_group: Any = None
    """Process group of all ranks for what runs beside training: checkpoints on their way to the disk."""

    @property
    def first(self) -> bool:
        """Whether this process speaks for all where one must."""
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """Which share of a mini-batch is this one's."""
        return self.rank // self.seq_world

    @property
    def data_world(self) -> int:
        """Shares that a mini-batch is cut into."""
        return self.world // self.seq_world

    @property
    def seq_rank(self) -> int:
        """Which part of a pass's tokens is this one's."""
        return self.rank % self.seq_world

    @property
    def leads(self) -> bool:
        """Whether this process answers for its share of the mini-batch: one of the neighbours does."""
        return self.seq_rank == 0

    def backward(self, loss: Tensor) -> None:
        """Backpropagate this rank's part of a loss that is a sum over ranks.

        Sharded models average gradients over ranks, so the part is scaled up; alone, it is left as it is.
        """
        (loss * self.world if self.world > 1 else loss).backward()

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over shares, in place: what a rank that does not speak has is left out."""
        if self.world > 1:
            if not self.leads:
                tensor.zero_()
            torch.distributed.all_reduce(tensor)
        return tensor

    def gather(self, value: T) -> list[T]:
        """Plain data of every share, in order."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(values, value)
        return values[:: self.seq_world]

    def merge(self, values: dict[str, T]) -> dict[str, T]:
        """What any rank has, for all; of a name that several have, the first one's."""
        if self.world == 1:
            return values
        parts: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(parts, values)
        return {name: value for part in reversed(parts) for name, value in part.items()}

    def broadcast(self, value: T) -> T:
        """Plain data of the first rank, for all."""
        if self.world == 1:
            return value
        values = [value]
        torch.distributed.broadcast_object_list(values, src=0)
        return values[0]

    def barrier(self) -> None:
        """Wait for the others, beside whatever training does."""
        if self.world > 1:
            torch.distributed.barrier(group=self.background_group)

    def attempt(self, function: Callable[[], T]) -> T:
        """`function()`, and a meeting: when it fails on one rank it fails on all, beside whatever training does."""
        error: Exception | None = None
        try:
            result = function()
        except Exception as caught:  # a full disk, say: the others must not wait for this rank
            error = caught
        if self.world > 1:
            errors: list[Any] = [None] * self.world
            torch.distributed.all_gather_object(
                errors, None if error is None else str(error), group=self.background_group
            )
            error = error or next((InfraError(f"rank {i}: {e}") for i, e in enumerate(errors) if e is not None), None)
        if error is not None:
            raise error
        return result

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """The 2-norm, f32, of a gradient of which each rank holds shards (plain tensors)."""
        norm = torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())
        if self.mesh is None:
            return norm
        square = norm.to(self.mesh.device_type).double().square()
        torch.distributed.all_reduce(square, group=self.mesh.get_group("shard"))
        return square.sqrt().float()


ALONE = Ranks()
"""A process that trains by itself."""
