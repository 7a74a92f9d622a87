"""An engine server that a Ray actor runs on its machine."""

from collections.abc import Mapping, Sequence
from inspect import isawaitable
from pathlib import Path
from typing import Any

import ray

from agentrl.engines.servers import ServerBackend, ServerProcess, StartFailed
from agentrl.runtime.ray.placement import Placement
from agentrl.runtime.ray.worker import Located, Location


class ServerWorker(Located):
    """A Ray actor that runs one server; the server ends with the actor."""

    def __init__(self, backend: ServerBackend, log: str, scratch: str) -> None:
        self.backend, self.log, self.scratch = backend, Path(log), Path(scratch)
        self.process: ServerProcess | None = None

    def launch(self, port: int, address: str, gpus: Sequence[str]) -> None:
        """Start the server, reachable from the cluster's other machines."""
        environment = self.backend.environment() | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})
        command = [*self.backend.command(port), "--host", address]  # the last --host counts
        self.process = ServerProcess(command, environment, self.log, scratch=self.scratch)
        self.process.launch()

    async def ask(self, name: str, *args: Any) -> Any:
        """An attribute of the server's process, or the result of its method; None before the launch."""
        found = getattr(self.process, name, None)
        result = found(*args) if callable(found) else found
        return await result if isawaitable(result) else result


class RemoteServer(ServerProcess):
    """A server that a `ServerWorker` runs."""

    def __init__(self, actor: Any, placement: Placement, location: Location) -> None:
        self.actor, self.placement, self.location = actor, placement, location

    @property
    def url(self) -> str:
        return f"http://{self.location.address}:{self.location.port}"

    @property
    def alive(self) -> bool:
        """Whether the server runs."""
        try:
            return bool(self._ask("alive"))
        except ray.exceptions.RayActorError:
            return False

    @property
    def stuck(self) -> bool:
        """Whether another program uses its port."""
        return bool(self._ask("stuck"))

    def launch(self) -> None:
        """Start it."""
        ray.get(self.launching())

    def launching(self) -> Any:
        """Start it; the answer to come."""
        gpus = self.placement.gpus or self.location.gpus
        return self.actor.launch.remote(self.location.port, self.location.address, gpus)

    async def stop(self) -> None:
        """Stop it."""
        await self.actor.ask.remote("stop")

    def tail(self, lines: int = 20) -> list[str]:
        """The last lines of its log."""
        return self._ask("tail", lines) or []

    def failure(self, name: str, hints: Mapping[str, str]) -> StartFailed:
        """The error for a server that did not start."""
        return self._ask("failure", name, hints)

    def _ask(self, name: str, *args: Any) -> Any:
        return ray.get(self.actor.ask.remote(name, *args))
