"""Ray workers: the base class, and one that samples with an hf engine on its own copy of the policy.

Heavy modules are imported when a worker starts, not with this file: its environment must be set first.
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
class Location:
    """The machine, GPUs and address of a worker."""

    node: str
    address: str
    gpus: tuple[str, ...]
    """As CUDA_VISIBLE_DEVICES would name them."""
    port: int
    """A free one."""


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


class RolloutWorker(Worker):
    """Samples with an hf engine."""

    def __init__(self, config: Config, folder: str, env: dict[str, str], threads: int) -> None:
        super().__init__(config, folder, env, threads)
        self.engine: Any = None
        self.parameters: dict[str, Any] = {}

    async def open_engine(self) -> None:
        """Load a copy of the policy and start the engine."""
        from agentrl.engines.launching import engine_in_process
        from agentrl.training import load_model

        model = load_model(self.config.model, device=self.device, seed=self.config.trainer.seed)
        model.requires_grad_(False)
        self.parameters = dict(model.named_parameters())
        self.engine = engine_in_process(self.config, model)
        await self.engine.start()

    async def announce(self, calls: list[Announcement]) -> None:
        """Open and release keys, in order."""
        for name, key in calls:
            getattr(self.engine, name)(key)

    async def generate(
        self, token_ids: list[int], sampling: Sampling, key: str, media: tuple[Medium, ...]
    ) -> Generation:
        """As `Engine.generate`."""
        generation: Generation = await self.engine.generate(token_ids, sampling, key=key, media=media)
        return generation

    async def ask(self, name: str, *args: Any) -> Any:
        """Call any other async method of the engine."""
        return await getattr(self.engine, name)(*args)

    async def load(self, bucket: dict[str, Any]) -> None:
        """Set some of the weights: name -> tensor."""
        for name, tensor in bucket.items():
            self.set_parameter(name, tensor)

    def set_parameter(self, name: str, tensor: Any) -> None:
        """Set one parameter."""
        self.parameters[name].data.copy_(tensor)
