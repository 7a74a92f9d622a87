"""A Ray worker that samples with an hf engine on its own copy of the policy."""

from collections.abc import Iterable
from typing import Any

from agentrl.runtime.ray.worker import Worker

Announcement = tuple[str, str]
"""(`open` or `release`, key)."""


class EngineWorker(Worker):
    """Samples with an hf engine."""

    engine: Any
    parameters: dict[str, Any]

    async def open_engine(self) -> None:
        """Load a copy of the policy and start the engine."""
        from agentrl.engines.launching import engine_in_process
        from agentrl.training import load_model

        model = load_model(self.config.model, device=self.device, seed=self.config.trainer.seed).module
        model.requires_grad_(False)
        self.parameters = dict(model.named_parameters())
        self.engine = engine_in_process(self.config, model)
        await self.engine.start()

    async def announce(self, calls: list[Announcement]) -> None:
        """Open and release keys, in order."""
        for name, key in calls:
            getattr(self.engine, name)(key)

    async def ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call an async method of the engine."""
        return await getattr(self.engine, name)(*args, **kwargs)

    async def load(self, bucket: Any) -> None:
        """Set the weights of an `agentrl.engines.servers.weights.bucket.Bucket`."""
        self.set_parameters(bucket.tensors())

    def set_parameters(self, tensors: Iterable[tuple[str, Any]]) -> None:
        """Set parameters by name."""
        for name, tensor in tensors:
            self.parameters[name].data.copy_(tensor)
