"""Containers by the Docker engine of this host."""

from typing import Any

from agentrl.containers.contract import ContainerSpec
from agentrl.containers.docker.container import DockerContainer
from agentrl.containers.docker.engine import Engine
from agentrl.containers.docker.images import Image, Images
from agentrl.containers.docker.networks import Networks
from agentrl.core.points import container_provider


@container_provider("docker")
class DockerProvider:
    """Makes containers of a Docker engine, and removes all that it made."""

    def __init__(self, settings: Any = None) -> None:
        self._engine = Engine()
        self._images = Images(self._engine)
        self._networks = Networks(self._engine)

    @property
    def run(self) -> str:
        """Value of the label `agentrl.run` of all that it makes."""
        return self._engine.run

    async def ready(self) -> None:
        """Connect. Raises UserError without an engine."""
        await self._engine.ready()

    async def prepare(self, spec: ContainerSpec) -> None:
        """Have the image and the network. Raises UserError without an engine, an image or a network; InfraError."""
        await self._engine.ready()
        await self._images.have(spec)
        await self._networks.prepare(spec)

    def container(self, spec: ContainerSpec) -> DockerContainer:
        """A container that is still to be started."""
        return DockerContainer(self._engine, self._images, self._networks, spec)

    async def close(self) -> None:
        """Remove all containers and networks of the run. Never raises."""
        await self._images.close()
        self._networks.close()
        await self._engine.close()

    async def address(self, spec: ContainerSpec) -> str:
        """This host's address in the network of a prepared spec. Raises UserError where it has none."""
        return await self._networks.address(spec)

    async def image(self, spec: ContainerSpec) -> Image:
        """The image of a prepared spec."""
        return await self._images.have(spec)
