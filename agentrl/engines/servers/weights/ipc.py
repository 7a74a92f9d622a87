"""Weights by CUDA IPC: servers on our GPU copy straight out of our memory, one bucket of bounded size at a time."""

import asyncio
import base64
import io
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any

import torch
import torch.multiprocessing  # teaches ForkingPickler about tensors

from agentrl.core.points import weight_transport
from agentrl.engines.servers.replica import Replica
from agentrl.engines.servers.weights.bucket import Bucket, buckets
from agentrl.engines.servers.weights.policy import PolicyWeights
from agentrl.engines.servers.weights.transport import Link, Transport
from agentrl.training.parallel.ranks import Ranks

DEVICE = 6
"""Which argument of PyTorch's function that opens memory is the GPU; SGLang's workers know names there, too."""


@weight_transport("ipc")
def ipc_transport(link: Link) -> Transport:
    """CUDA IPC, between processes on one GPU."""
    if link.ranks.world > 1 and link.tensor_parallel > 1:
        return JointIpcTransport(link.weights, link.ranks, bucket_bytes=link.bucket_bytes)
    return IpcTransport(link.weights, bucket_bytes=link.bucket_bytes)


class IpcTransport:
    """Shares buckets of GPU memory with servers on the same GPU."""

    name = "ipc"

    def __init__(self, weights: PolicyWeights, *, bucket_bytes: int) -> None:
        self.weights, self.bucket_bytes = weights, bucket_bytes

    async def push(self, replicas: Sequence[Replica]) -> None:
        """Give the replicas the present weights; each bucket's memory is ours again before the next is made."""
        for bucket in buckets(self.weights.tensors(), self.bucket_bytes):
            if bucket.flat.is_cuda:
                torch.cuda.synchronize(bucket.flat.device)
            await self._load(bucket, replicas)
            del bucket
        if torch.cuda.is_available():
            torch.cuda.ipc_collect()

    async def close(self) -> None:
        """Nothing outlives a push."""

    async def _load(self, bucket: Bucket, replicas: Sequence[Replica]) -> None:
        await asyncio.gather(*(replica.dialect.load_ipc(replica.http, bucket) for replica in replicas))


class JointIpcTransport(IpcTransport):
    """For SGLang servers that span the GPUs of several processes of a sharded model: each process shares the copy on
    its own GPU, and the one on a server's first GPU tells the server of all. Every process pushes, in step."""

    def __init__(self, weights: PolicyWeights, ranks: Ranks, *, bucket_bytes: int) -> None:
        super().__init__(weights, bucket_bytes=bucket_bytes)
        self.ranks = ranks

    async def _load(self, bucket: Bucket, replicas: Sequence[Replica]) -> None:
        handles = self.ranks.merge({str(self.ranks.rank): serialize(bucket)})
        calls: list[Any] = []
        for replica in replicas:
            dialect: Any = replica.dialect
            own = [handles[str(self.ranks.rank + i)] for i in range(dialect.tensor_parallel)]
            calls.append(dialect.load_handles(replica.http, own))
        said = await asyncio.gather(*calls, return_exceptions=True)
        self.ranks.attempt(lambda: _raise(said))  # a meeting: until then all keep their memory


def _raise(said: Sequence[Any]) -> None:
    for error in said:
        if isinstance(error, BaseException):
            raise error


def serialize(bucket: Bucket) -> str:
    """A bucket as SGLang reads it, in base64: the handle of its memory, and where each tensor lies.

    SGLang's own class for the latter is not to be had here; it reads attributes, so any object with them will do.
    """
    places = [
        SimpleNamespace(
            name=e.name,
            shape=torch.Size(e.shape),
            dtype=e.dtype,
            start_idx=e.start,
            end_idx=e.end,
            numel=e.end - e.start,
        )
        for e in bucket.entries
    ]
    return dumps({"flattened_tensor": bucket.flat, "metadata": places})


def dumps(value: Any) -> str:
    """Pickled so that tensors travel as handles of their memory, in base64."""
    buffer = io.BytesIO()
    pickler: Any = ForkingPickler(buffer)
    pickler.dispatch_table[torch.Tensor] = _by_gpu_name
    pickler.dump(value)
    return base64.b64encode(buffer.getbuffer()).decode()


def _by_gpu_name(tensor: torch.Tensor) -> Any:
    """As torch would, but with the GPU's own name: its number may be another in the process that reads."""
    rebuild, arguments = torch.multiprocessing.reductions.reduce_tensor(tensor)
    if tensor.is_cuda:
        name = str(torch.cuda.get_device_properties(tensor.device).uuid)
        arguments = (*arguments[:DEVICE], name, *arguments[DEVICE + 1 :])
    return rebuild, arguments
