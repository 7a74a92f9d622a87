"""The base of Ray workers.

Heavy modules are imported at a worker's first work, not with this file: its environment must be set first, and servers
start when the workers' machines are known.
"""

import logging
import os
from collections import deque
from dataclasses import dataclass, replace
from functools import cached_property
from logging.handlers import QueueHandler
from typing import Any

import ray

from agentrl.engines.servers.host import first_gpu
from agentrl.engines.servers.process import free_port


@dataclass(frozen=True)
class Location:
    """The machine, GPUs and address of a worker."""

    node: str
    address: str
    gpus: tuple[str, ...]
    """Their names in CUDA_VISIBLE_DEVICES."""
    port: int
    """A free port."""
    memory: int = 0
    """Bytes of the first GPU that it sees; 0: none."""


class Located:
    """A Ray actor that says where it is."""

    def location(self) -> Location:
        """Machine, address, GPUs and a free port."""
        gpus = tuple(str(gpu) for gpu in ray.get_gpu_ids())
        node = ray.get_runtime_context().get_node_id()
        return Location(node, ray.util.get_node_ip_address(), gpus, free_port(), first_gpu()[1])


class Worker(Located):
    """A Ray actor. Only the controller calls it."""

    def __init__(self, config: Any, folder: str, env: dict[str, str], threads: int) -> None:
        """`config`: any with a trainer section. `folder`: the controller's working directory. `threads`: PyTorch's on a
        CPU; 0: its default."""
        for name, value in env.items():
            os.environ.setdefault(name, value)
        if os.path.isdir(folder):
            os.chdir(folder)
        self._warnings = deque[logging.LogRecord](maxlen=1000)  # nobody asks most workers for theirs
        forwarding = QueueHandler(self)  # type: ignore[arg-type]
        forwarding.setLevel(logging.WARNING)
        logging.getLogger("agentrl").addHandler(forwarding)
        device = "cuda" if ray.get_gpu_ids() else "cpu"
        self.config = replace(config, trainer=replace(config.trainer, device=device))
        self.threads = threads

    def put_nowait(self, record: logging.LogRecord) -> None:
        """Store a warning, as a queue of records does."""
        self._warnings.append(record)

    def take_warnings(self) -> list[logging.LogRecord]:
        """Warnings since the last call, for the run's log; a worker's own log is in Ray's folder."""
        return [self._warnings.popleft() for _ in range(len(self._warnings))]

    @cached_property
    def device(self) -> Any:
        """The `torch.device` that it computes on, ready for that."""
        from agentrl.training import device_for, tune_cpu

        device = device_for(self.config.trainer.device)
        if device.type == "cpu":
            tune_cpu(self.threads or None)
        return device
