"""An engine server that a Ray actor runs on its machine."""

import asyncio
from collections.abc import Mapping, Sequence
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

    def alive(self) -> bool:
        """Whether the server runs."""
        return self.process is not None and self.process.alive

    def stuck(self) -> bool:
        """Whether another program uses its port."""
        return self.process is not None and self.process.stuck

    def stop(self) -> None:
        """Stop it."""
        if self.process is not None:
            asyncio.run(self.process.stop())

    def tail(self, lines: int) -> list[str]:
        """The last lines of its log."""
        return self.process.tail(lines) if self.process is not None else []

    def failure(self, name: str, hints: dict[str, str]) -> tuple[str, tuple[str, ...]]:
        """(why it did not start, its last lines)."""
        assert self.process is not None
        error = self.process.failure(name, hints)
        return str(error), error.details


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
            return bool(ray.get(self.actor.alive.remote()))
        except ray.exceptions.RayActorError:
            return False

    @property
    def stuck(self) -> bool:
        """Whether another program uses its port."""
        return bool(ray.get(self.actor.stuck.remote()))

    def launch(self) -> None:
        """Start it."""
        ray.get(self.launching())

    def launching(self) -> Any:
        """Start it; the answer to come."""
        gpus = self.placement.gpus or self.location.gpus
        return self.actor.launch.remote(self.location.port, self.location.address, gpus)

    async def stop(self) -> None:
        """Stop it."""
        await self.actor.stop.remote()

    def tail(self, lines: int = 20) -> list[str]:
        """The last lines of its log."""
        lines_: list[str] = ray.get(self.actor.tail.remote(lines))
        return lines_

    def failure(self, name: str, hints: Mapping[str, str]) -> StartFailed:
        """The error for a server that did not start."""
        return StartFailed(*ray.get(self.actor.failure.remote(name, dict(hints))))
