"""A worker, and one that samples: an hf engine on a copy of the policy of its own.

Heavy modules are imported when a worker starts, not with this file: by then its surroundings are set.
"""

import os
from dataclasses import dataclass, replace
from typing import Any

import ray

from agentrl.config.schema import Config
from agentrl.engines.engine import Generation, Sampling
from agentrl.trajectory.medium import Medium

Announcement = tuple[str, str]
"""(`open` or `release`, key)."""


@dataclass(frozen=True)
class Place:
    """Where a worker runs."""

    node: str
    address: str
    gpus: tuple[str, ...]
    """As CUDA_VISIBLE_DEVICES would name them."""
    port: int
    """A free one."""


class Worker:
    """An actor. Its calls come from the controller only, and in order where that matters."""

    def __init__(self, config: Any, folder: str, surroundings: dict[str, str], threads: int) -> None:
        """`config`: any with a trainer. `folder`: the controller's, for relative paths. `threads`: of an operation on a
        CPU; 0: PyTorch's choice."""
        for name, value in surroundings.items():
            os.environ.setdefault(name, value)
        if os.path.isdir(folder):
            os.chdir(folder)
        from agentrl.training import device_for, tune_cpu

        device = "cuda" if ray.get_gpu_ids() else "cpu"
        self.config = replace(config, trainer=replace(config.trainer, device=device))
        self.device = device_for(device)
        if device == "cpu":
            tune_cpu(threads or None)

    async def place(self) -> Place:
        """Where this is."""
        from agentrl.engines.servers.process import free_port

        node = ray.get_runtime_context().get_node_id()
        gpus = tuple(str(gpu) for gpu in ray.get_gpu_ids())
        return Place(node, ray.util.get_node_ip_address(), gpus, free_port())


class Host(Worker):
    """Samples."""

    def __init__(self, config: Config, folder: str, surroundings: dict[str, str], threads: int) -> None:
        super().__init__(config, folder, surroundings, threads)
        self.engine: Any = None
        self.parameters: dict[str, Any] = {}

    async def open_engine(self) -> None:
        """Load a copy of the policy and make ready to sample."""
        from agentrl.engines.launching import engine_in_process
        from agentrl.training import load_model

        model = load_model(self.config.model, device=self.device, seed=self.config.trainer.seed)
        model.requires_grad_(False)
        self.parameters = dict(model.named_parameters())
        self.engine = engine_in_process(self.config, model)
        await self.engine.start()

    async def announce(self, calls: list[Announcement]) -> None:
        """Keys that come and go, in their order."""
        for name, key in calls:
            getattr(self.engine, name)(key)

    async def generate(
        self, token_ids: list[int], sampling: Sampling, key: str, media: tuple[Medium, ...]
    ) -> Generation:
        """As `Engine.generate`."""
        generation: Generation = await self.engine.generate(token_ids, sampling, key=key, media=media)
        return generation

    async def ask(self, name: str, *args: Any) -> Any:
        """Any other method of the engine that waits for an answer."""
        return await getattr(self.engine, name)(*args)

    async def load(self, bucket: dict[str, Any]) -> None:
        """Take some of the policy's weights: name -> tensor."""
        for name, tensor in bucket.items():
            self.take(name, tensor)

    def take(self, name: str, tensor: Any) -> None:
        """One parameter's new value."""
        self.parameters[name].data.copy_(tensor)
