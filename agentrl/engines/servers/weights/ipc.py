"""Weights by CUDA IPC: servers on the same GPU copy them from the trainer's memory, one bucket at a time."""

import asyncio
import base64
import io
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any

import torch
import torch.multiprocessing  # registers tensors with ForkingPickler

from agentrl.core.points import weight_transport
from agentrl.engines.servers.replica import Replica
from agentrl.engines.servers.weights.bucket import Bucket, buckets
from agentrl.engines.servers.weights.transport import Link, Transport

DEVICE = 6
"""Index of the GPU among the arguments of PyTorch's function that opens memory; SGLang also takes its name there."""


@weight_transport("ipc")
def ipc_transport(link: Link) -> Transport:
    """CUDA IPC, between processes on one GPU."""
    return JointIpcTransport(link) if link.ranks.world > 1 and link.tensor_parallel > 1 else IpcTransport(link)


class IpcTransport(Transport):
    """Shares buckets of GPU memory with servers on the same GPU."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def push(self, replicas: Sequence[Replica]) -> None:
        """Send the current weights to the replicas; they have copied each bucket before the next one is made."""
        for bucket in buckets(self.link.weights.tensors(), self.link.bucket_bytes):
            if bucket.flat.is_cuda:
                torch.cuda.synchronize(bucket.flat.device)
            await self._load(bucket, replicas)
            del bucket
        if torch.cuda.is_available():
            torch.cuda.ipc_collect()

    async def _load(self, bucket: Bucket, replicas: Sequence[Replica]) -> None:
        await asyncio.gather(*(replica.backend.load_ipc(replica.http, bucket) for replica in replicas))


class JointIpcTransport(IpcTransport):
    """For SGLang servers that span the GPUs of several processes of a sharded model: each process shares the copy on
    its own GPU, and the one on a server's first GPU tells the server of all. Every process pushes, in step."""

    async def _load(self, bucket: Bucket, replicas: Sequence[Replica]) -> None:
        ranks = self.link.ranks
        handles = ranks.merge({str(ranks.rank): serialize(bucket)})
        calls: list[Any] = []
        for replica in replicas:
            backend: Any = replica.backend
            own = [handles[str(ranks.rank + i)] for i in range(backend.tensor_parallel)]
            calls.append(backend.load_handles(replica.http, own))
        results = await asyncio.gather(*calls, return_exceptions=True)
        ranks.attempt(lambda: _raise(results))  # a barrier: until then all ranks keep their memory


def _raise(results: Sequence[Any]) -> None:
    for error in results:
        if isinstance(error, BaseException):
            raise error


def serialize(bucket: Bucket) -> str:
    """A bucket in SGLang's form, in base64: the handle of its memory, and the layout of the tensors.

    SGLang is not installed here, so its own class for the layout is missing; any object with its attributes works.
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
    """The pickled value in base64, with handles of memory in place of tensors."""
    buffer = io.BytesIO()
    pickler: Any = ForkingPickler(buffer)
    pickler.dispatch_table[torch.Tensor] = _by_gpu_name
    pickler.dump(value)
    return base64.b64encode(buffer.getbuffer()).decode()


def _by_gpu_name(tensor: torch.Tensor) -> Any:
    """Torch's own handle, but with the GPU's UUID: its number may differ in the reading process."""
    rebuild, arguments = torch.multiprocessing.reductions.reduce_tensor(tensor)
    if tensor.is_cuda:
        name = str(torch.cuda.get_device_properties(tensor.device).uuid)
        arguments = (*arguments[:DEVICE], name, *arguments[DEVICE + 1 :])
    return rebuild, arguments
