"""Weights by files: into shared memory or a disk that trainer and servers see. Works everywhere, CPUs included."""

import asyncio
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import save_file

from agentrl.core.errors import UserError
from agentrl.core.points import weight_transport
from agentrl.engines.servers.replica import Replica
from agentrl.engines.servers.weights.bucket import buckets
from agentrl.engines.servers.weights.transport import Link, Transport


@weight_transport("files")
class FilesTransport(Transport):
    """Writes one safetensors file a bucket into a folder that servers see, and has them read it."""

    def __init__(self, link: Link) -> None:
        self.link, self.folder = link, link.folder

    async def push(self, replicas: Sequence[Replica]) -> None:
        """Give the replicas the present weights. Raises UserError where there is no room."""
        folder = await asyncio.to_thread(self._write)
        await asyncio.gather(*(replica.backend.load_files(replica.http, folder) for replica in replicas))

    def _write(self) -> Path:
        self._prepare()
        for i, bucket in enumerate(buckets(self.link.weights.tensors(), self.link.bucket_bytes)):
            file = self.folder / f"model-{i:05d}.safetensors"
            tensors = {name: tensor.cpu() for name, tensor in bucket.tensors()}
            # A new file under the old name: a server may still have the old one mapped.
            save_file(tensors, file.with_suffix(".new"), metadata={"format": "pt"})
            os.replace(file.with_suffix(".new"), file)
        return self.folder

    def _prepare(self) -> None:
        if (self.folder / "config.json").exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        needed = self.link.weights.num_bytes + self.link.bucket_bytes
        if shutil.disk_usage(self.folder).free < needed:
            gib = needed / 2**30
            raise UserError(f"{self.folder} has less than {gib:.1f} GiB for weights: set rollout.weight_dir")
        self.link.model_config.save_pretrained(self.folder)
