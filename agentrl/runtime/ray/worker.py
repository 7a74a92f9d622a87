"""The base of Ray workers.

Heavy modules are imported when a worker starts, not with this file: its environment must be set first.
"""

import os
from dataclasses import dataclass, replace
from typing import Any

import ray


@dataclass(frozen=True)
class Location:
    """The machine, GPUs and address of a worker."""

    node: str
    address: str
    gpus: tuple[str, ...]
    """Their names in CUDA_VISIBLE_DEVICES."""
    port: int
    """A free port."""


class Worker:
    """A Ray actor. Only the controller calls it."""

    def __init__(self, config: Any, folder: str, env: dict[str, str], threads: int) -> None:
        """`config`: any with a trainer section. `folder`: the controller's working directory. `threads`: PyTorch's on a
        CPU; 0: its default."""
        for name, value in env.items():
            os.environ.setdefault(name, value)
        if os.path.isdir(folder):
            os.chdir(folder)
        from agentrl.training import device_for, tune_cpu

        device = "cuda" if ray.get_gpu_ids() else "cpu"
        self.config = replace(config, trainer=replace(config.trainer, device=device))
        self.device = device_for(device)
        if device == "cpu":
            tune_cpu(threads or None)

    async def location(self) -> Location:
        """Machine, address, GPUs and a free port."""
        from agentrl.engines.servers.process import free_port

        node = ray.get_runtime_context().get_node_id()
        gpus = tuple(str(gpu) for gpu in ray.get_gpu_ids())
        return Location(node, ray.util.get_node_ip_address(), gpus, free_port())
