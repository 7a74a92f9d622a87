"""A server held by an actor on the machine that it runs on."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from agentrl.engines.servers import ServerBackend, ServerProcess, StartFailed
from agentrl.runtime.ray.host import Place
from agentrl.runtime.ray.placing import Spot


class ServerHost:
    """An actor that holds one server on its machine; should it die, the server dies with it."""

    def __init__(self, backend: ServerBackend, log: str, scratch: str) -> None:
        self.backend, self.log, self.scratch = backend, Path(log), Path(scratch)
        self.process: ServerProcess | None = None

    def place(self) -> Place:
        """Where this is, and a free port."""
        from agentrl.engines.servers.process import free_port

        gpus = tuple(str(gpu) for gpu in ray.get_gpu_ids())
        return Place(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), gpus, free_port())

    def launch(self, port: int, address: str, gpus: Sequence[str]) -> None:
        """Start the server, reachable from the cluster's other machines."""
        environment = self.backend.environment() | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})
        command = [*self.backend.command(port), "--host", address]  # the last one counts
        self.process = ServerProcess(command, environment, self.log, scratch=self.scratch)
        self.process.launch()

    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.alive

    def stuck(self) -> bool:
        """Whether its port is another's."""
        return self.process is not None and self.process.stuck

    def stop(self) -> None:
        """End it."""
        if self.process is not None:
            asyncio.run(self.process.stop())

    def tail(self, lines: int) -> list[str]:
        """The last lines of its log."""
        return self.process.tail(lines) if self.process is not None else []

    def failure(self, name: str, hints: dict[str, str]) -> tuple[str, tuple[str, ...]]:
        """Why it did not come up, and what it said."""
        assert self.process is not None
        error = self.process.failure(name, hints)
        return str(error), error.details


class FarServer:
    """What `Replica` needs of a `ServerProcess`, for one held by an actor."""

    def __init__(self, actor: Any, spot: Spot, place: Place) -> None:
        self.actor, self.spot, self.place = actor, spot, place
        self.launched = False

    @property
    def url(self) -> str:
        return f"http://{self.place.address}:{self.place.port}"

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        try:
            return bool(ray.get(self.actor.alive.remote()))
        except ray.exceptions.RayActorError:
            return False

    @property
    def stuck(self) -> bool:
        """Whether its port is another's."""
        return bool(ray.get(self.actor.stuck.remote()))

    def launch(self) -> None:
        """Start it; returns at once."""
        gpus = self.spot.gpus or self.place.gpus
        self.launched = True
        ray.get(self.actor.launch.remote(self.place.port, self.place.address, gpus))

    async def stop(self) -> None:
        """End it."""
        await self.actor.stop.remote()

    def tail(self, lines: int = 20) -> list[str]:
        """The last lines of its log."""
        said: list[str] = ray.get(self.actor.tail.remote(lines))
        return said

    def failure(self, name: str, hints: Mapping[str, str]) -> StartFailed:
        """Why it did not come up."""
        return StartFailed(*ray.get(self.actor.failure.remote(name, dict(hints))))
