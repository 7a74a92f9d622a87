"""Workers that train together; those of `agentrl train` have an engine beside where engines share their GPUs."""

import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from agentrl.config.schema import Config
from agentrl.engines.servers import Replica, ServerBackend
from agentrl.runtime.ray.host import Host, Worker

Target = tuple[str, int]
"""(URL of a server, how often it was started)."""


class Member(Worker):
    """One of those that train together: a learner in a torch.distributed group. All get the same calls, in order."""

    learner: Any = None
    first = False

    async def join(self, rank: int, world: int, address: str, port: int) -> None:
        """Meet the others at `address`, rank 0's, and make this one's learner."""
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": "0",  # Ray shows each worker its own GPU only
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
        }
        self.first = rank == 0
        self.learner = self._learner(world)

    async def call(self, name: str, *args: Any) -> Any:
        """A method of the learner; rank 0 answers for all."""
        answer = getattr(self.learner, name)(*args)
        return at_home(answer) if self.first else None

    def _learner(self, world: int) -> Any:
        raise NotImplementedError

    def _meet(self, world: int, sequence_parallel: int, fsdp_size: int) -> Any:
        """Its place in the group: `Ranks`."""
        from agentrl.training.parallel.process_group import join_ranks
        from agentrl.training.parallel.ranks import ALONE

        if world == 1:
            return ALONE
        timeout = timedelta(seconds=self.config.trainer.nccl_timeout)
        return join_ranks(self.device, sequence_parallel=sequence_parallel, fsdp_size=fsdp_size, timeout=timeout)


class Rank(Member, Host):
    """A rank of `agentrl train`. Every method but an engine's is called on all ranks, in the same order."""

    def __init__(self, config: Config, folder: str, surroundings: dict[str, str], threads: int) -> None:
        super().__init__(config, folder, surroundings, threads)
        self._leaving: Iterator[dict[str, Any]] = iter(())
        self._weights: Any = None
        self._transport: Any = None
        self._replicas: dict[str, Replica] = {}

    async def sync(self, version: int) -> None:
        """Give the engine in this worker the policy's present weights."""
        for name, tensor in self._trained():
            self.take(name, tensor)
        await self.engine.update_weights(version)

    async def begin_export(self, most: int) -> None:
        """Make ready to hand weights out, `most` bytes at a time."""
        self._leaving = in_buckets(self._trained(), most)

    async def export(self) -> tuple[bool, dict[str, Any]]:
        """Whether there was more, and from rank 0 the next weights."""
        bucket = next(self._leaving, None)
        return bucket is not None, bucket if bucket is not None and self.first else {}

    async def push(self, backend: ServerBackend, way: str, scratch: str, targets: Mapping[str, list[Target]]) -> None:
        """Give servers the policy's present weights. `targets`: by rank, the servers that this rank serves.

        A rank without servers takes part, for the full weights are made by all ranks together.
        """
        from agentrl.engines.launching import sent_weights, transport

        ranks = self.learner.ranks
        if self._transport is None:
            self._weights = sent_weights(self.config, self.learner.module, way, self.device)
            self._transport = transport(self.config, self._weights, way, self.device, Path(scratch), ranks)
        mine = targets.get(str(ranks.rank), [])
        if mine or (way == "ipc" and backend.tensor_parallel > 1):
            await self._transport.push([self._replica(backend, *target) for target in mine])
        else:
            for _ in self._weights.tensors():
                pass

    async def free(self) -> None:
        """Give unused GPU memory back, for the engine beside."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _learner(self, world: int) -> Any:
        from agentrl.training.learner import Learner

        actor = self.config.actor
        ranks = self._meet(world, actor.ulysses_sequence_parallel_size, actor.fsdp_config.fsdp_size)
        return Learner(self.config, ranks)

    def _trained(self) -> Iterator[tuple[str, Any]]:
        """Every parameter that training changes, whole, good until the next; all ranks iterate together."""
        module = self.learner.module
        trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
        units = module.units() if hasattr(module, "units") else [dict(module.named_parameters())]
        for unit in units:
            yield from ((name, tensor.detach()) for name, tensor in unit.items() if name in trained)

    def _replica(self, backend: ServerBackend, url: str, starts: int) -> Replica:
        replica = self._replicas.setdefault(url, Replica(backend, url))
        replica.starts = starts
        return replica


def in_buckets(tensors: Iterator[tuple[str, Any]], most: int) -> Iterator[dict[str, Any]]:
    """Copies on the CPU, at most `most` bytes together, or one that is larger."""
    bucket: dict[str, Any] = {}
    size = 0
    for name, tensor in tensors:
        if bucket and size + tensor.nbytes > most:
            yield bucket
            bucket, size = {}, 0
        bucket[name] = tensor.to("cpu", copy=True)
        size += tensor.nbytes
    if bucket:
        yield bucket


def at_home(answer: Any) -> Any:
    """An answer on its way to the controller, which may have no GPU."""
    import torch
    from torch.utils import _pytree as pytree

    from agentrl.training import Batch

    if isinstance(answer, Batch):
        return answer.to(torch.device("cpu"))
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), answer)
