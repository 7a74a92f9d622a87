"""Weights by broadcast (NCCL between GPUs, else gloo), for servers on other GPUs than the trainer's."""

import asyncio
import os
import secrets
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _new_process_group_helper, _world, rendezvous

from agentrl.core.points import weight_transport
from agentrl.engines.servers.backend import BROADCAST_ENVIRONMENT, BroadcastGroup
from agentrl.engines.servers.process import free_port
from agentrl.engines.servers.replica import Replica
from agentrl.engines.servers.weights.bucket import Bucket, buckets
from agentrl.engines.servers.weights.transport import Link, Transport

TIMEOUT = timedelta(minutes=5)


@weight_transport("nccl")
class BroadcastTransport(Transport):
    """One process group of the trainer (rank 0) and every worker of every replica; made again after a restart."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._group: BroadcastGroup | None = None
        self._members: dict[Replica, int] = {}
        self._process_group: Any = None
        os.environ.update(BROADCAST_ENVIRONMENT)

    async def push(self, replicas: Sequence[Replica]) -> None:
        """Give the replicas the present weights."""
        members = {replica: replica.starts for replica in replicas}
        if members != self._members:  # a server that was restarted is no member any more
            await self.close()
            await self._join(replicas)
            self._members = members
        group = self._group
        assert group is not None
        for bucket in buckets(self.link.weights.tensors(), self.link.bucket_bytes):
            calls = [replica.backend.receive(replica.http, group, bucket) for replica in replicas]
            await asyncio.gather(asyncio.to_thread(self._broadcast, bucket), *calls)

    async def close(self) -> None:
        """Leave the group, if there is one."""
        if self._process_group is not None:
            await asyncio.to_thread(dist.destroy_process_group, self._process_group)
        self._process_group, self._members = None, {}

    async def _join(self, replicas: Sequence[Replica]) -> None:
        ranks, size = [], 1
        for replica in replicas:
            ranks.append(size)
            size += replica.backend.tensor_parallel
        name = f"agentrl-{secrets.token_hex(4)}"
        backend = "nccl" if self.link.device.type == "cuda" else "gloo"
        group = self._group = BroadcastGroup(name, _address(replicas), free_port(), size, backend)
        calls = [r.backend.join(r.http, group, rank) for r, rank in zip(replicas, ranks, strict=True)]
        self._process_group, *_ = await asyncio.gather(asyncio.to_thread(process_group, group), *calls)

    def _broadcast(self, bucket: Bucket) -> None:
        dist.broadcast(bucket.flat, src=0, group=self._process_group)
        if bucket.flat.is_cuda:
            torch.cuda.synchronize(bucket.flat.device)


def process_group(group: BroadcastGroup) -> Any:
    """Rank 0 of a further group, which `torch.distributed` cannot make by its public functions."""
    store, _, _ = next(rendezvous(f"tcp://{group.address}:{group.port}", 0, group.world_size, timeout=TIMEOUT))
    store.set_timeout(TIMEOUT)
    make: Any = _new_process_group_helper
    size, backend, prefixed = group.world_size, dist.Backend(group.backend), PrefixStore(group.name, store)
    made, _ = make(size, 0, [], backend, prefixed, group_name=group.name, timeout=TIMEOUT)
    _world.pg_group_ranks[made] = {rank: rank for rank in range(group.world_size)}
    return made


def _address(replicas: Sequence[Replica]) -> str:
    """The trainer's address in the servers' network."""
    host = urlsplit(replicas[0].url).hostname or "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing: finds the local address of that route
        return str(probe.getsockname()[0])
