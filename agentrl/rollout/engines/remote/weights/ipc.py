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

from agentrl.rollout.engines.remote.replica import Replica
from agentrl.rollout.engines.remote.weights.bucket import Bucket, buckets
from agentrl.rollout.engines.remote.weights.policy import PolicyWeights


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
            await asyncio.gather(*(replica.dialect.load_ipc(replica.http, bucket) for replica in replicas))
            del bucket
        if torch.cuda.is_available():
            torch.cuda.ipc_collect()

    async def close(self) -> None:
        """Nothing outlives a push."""


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
    ForkingPickler(buffer).dump(value)
    return base64.b64encode(buffer.getbuffer()).decode()
