"""Ray workers that train together; a rank of `agentrl train` also runs an engine if engines share its GPU."""

import asyncio
import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.schema.fsdp import Sharding
from agentrl.engines.servers import Replica, ServerBackend
from agentrl.runtime.ray.engine_worker import EngineWorker
from agentrl.runtime.ray.store import RayStore, send_references
from agentrl.runtime.ray.worker import Worker
from agentrl.trajectory.plain import changed_groups
from agentrl.trajectory.store import stored

if TYPE_CHECKING:
    from agentrl.training.batches.transfer import Share

Target = tuple[str, int]
"""(URL of a server, how often it was started)."""


class TrainingWorker(Worker):
    """A learner in a torch.distributed group. All ranks get the same calls, in the same order."""

    learner: Any = None
    first = False

    async def join(self, rank: int, world: int, address: str, port: int) -> None:
        """Join the process group at rank 0's `address`, and create the learner."""
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": "0",  # Ray shows each worker its own GPU only
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
        }
        self.first = rank == 0
        self.learner = self._learner(world)

    async def call(self, name: str, *args: Any, **named: Any) -> Any:
        """Call a method of the learner; only rank 0 returns its result."""
        result = getattr(self.learner, name)(*args, **named)
        return to_cpu(result) if self.first else None

    def _learner(self, world: int) -> Any:
        raise NotImplementedError

    def _join_ranks(self, world: int, sequence_parallel: int, fsdp_config: Sharding) -> Any:
        """Join the process group; returns its `Ranks`."""
        from agentrl.training.parallel.process_group import join_ranks
        from agentrl.training.parallel.ranks import ALONE

        device = self.device
        if world == 1:
            return ALONE
        timeout = timedelta(seconds=self.config.trainer.nccl_timeout)
        sizes = {"fsdp_size": fsdp_config.fsdp_size, "expert_parallel": fsdp_config.expert_parallel_size}
        return join_ranks(device, sequence_parallel=sequence_parallel, timeout=timeout, **sizes)


class Rank(TrainingWorker, EngineWorker):
    """A rank of `agentrl train`. All ranks get the same calls in the same order, except calls of the engine."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        send_references()
        self._batch: Any = None
        self._store = RayStore()
        self._weights: Any = None
        self._exported: Iterator[Any] = iter(())
        self._transport: Any = None
        self._replicas: dict[str, Replica] = {}

    async def compute_logprobs(self, share: "Share") -> Any:
        """`Learner.compute_logprobs` of a share; returns the reference of the columns that it computed, of ranks that
        split its tokens the first one.

        The share stays here for `update`.
        """
        from agentrl.training.batches.transfer import computed_columns

        batch = await self._received(share)
        self._batch = self.learner.compute_logprobs(batch)
        leads = self.learner.ranks.leads
        return self._store.put(computed_columns(self._batch, batch, share.wanted)) if leads else None

    async def accumulate_early(self, share: "Share") -> None:
        """`Learner.accumulate_early` of a share."""
        self.learner.accumulate_early(await self._received(share))

    async def update(self, share: "Share") -> dict[str, float] | None:
        """`Learner.update` of that share, or of another one."""
        metrics: dict[str, float] = self.learner.update(await self._received(share))
        return metrics if self.first else None

    async def load_checkpoint(self, path: Path) -> Any:
        """`Learner.load`; the bodies of trajectories go to the store."""
        step, state = self.learner.load(path)
        if self.first and "rows" in state:
            state |= {"rows": changed_groups(state["rows"], lambda each: stored(each, self._store))}
        return to_cpu((step, state)) if self.first else None

    async def _received(self, share: "Share") -> Any:
        """A share as a batch; the one before is given up."""
        batch, self._batch = self._batch, None
        return share.batch(await asyncio.gather(*share.references), batch)

    async def sync(self, version: int) -> None:
        """Copy the current weights to the engine in this worker."""
        self.set_parameters(self._trained())
        for adapter in self.learner.adapters() if self.config.model.policies else ():
            self.engine.set_adapter(*adapter)
        await self.engine.update_weights(version)

    async def export(self, most: int, number: int) -> Any:
        """The next bucket of the weights, of at most `most` bytes: its reference, in CPU memory, on rank 0. None after
        the last one; number 0 begins."""
        from agentrl.engines.servers.weights.bucket import buckets

        if number == 0:
            self._exported = buckets(self._trained(), most)
        bucket = next(self._exported, None)
        return self._store.put(replace(bucket, flat=bucket.flat.cpu())) if bucket and self.first else None

    async def push(
        self, backend: ServerBackend, method: str, scratch: str, targets: Mapping[str, list[Target]]
    ) -> None:
        """Send the current weights to servers. `targets`: rank -> the servers it sends to.

        A rank without servers takes part too: gathering full weights is a collective operation.
        """
        from agentrl.engines.sending import sent_weights, transport

        ranks = self.learner.ranks
        if self._transport is None:
            self._weights = sent_weights(self.config, self.learner.model, method, self.device)
            self._transport = transport(
                self.config, self._weights, method, self.device, Path(scratch), ranks, self.learner.placed
            )
        mine = targets.get(str(ranks.rank), [])
        if mine or (method == "ipc" and backend.tensor_parallel > 1):
            await self._transport.push([self._replica(backend, *target) for target in mine])
        else:
            for _ in self.learner.placed():
                deque(self._weights.tensors(), maxlen=0)

    async def free(self) -> None:
        """Release unused GPU memory for the engine on the same GPU."""
        import torch

        torch.cuda.empty_cache()

    def _learner(self, world: int) -> Any:
        from agentrl.training.learner import Learner

        actor = self.config.actor
        ranks = self._join_ranks(world, actor.ulysses_sequence_parallel_size, actor.fsdp_config)
        return Learner(self.config, ranks)

    def _trained(self) -> Iterator[tuple[str, Any]]:
        """Every trained parameter, gathered; a tensor is valid until the next one. All ranks iterate together."""
        model = self.learner.model
        trained = model.trainable_shards().keys()
        for unit in model.units():
            yield from ((name, tensor.detach()) for name, tensor in unit.items() if name in trained)

    def _replica(self, backend: ServerBackend, url: str, starts: int) -> Replica:
        replica = self._replicas.setdefault(url, Replica(backend, url))
        replica.starts = starts
        return replica


def to_cpu(result: Any) -> Any:
    """The result on the CPU: the controller may have no GPU."""
    import torch
    from torch.utils import _pytree as pytree

    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), result)
