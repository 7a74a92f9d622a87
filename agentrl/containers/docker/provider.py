"""Containers by the Docker engine of this host, and the removal of what ended runs left: after a crash, say."""

from contextlib import suppress
from typing import Any

from agentrl.containers.contract import ContainerSpec
from agentrl.containers.docker.compose import Composer
from agentrl.containers.docker.container import DockerContainer
from agentrl.containers.docker.engine import Engine, connect, explained
from agentrl.containers.docker.images import LABEL, Images
from agentrl.containers.docker.networks import Networks
from agentrl.containers.docker.reaper import orphans, remove_orphans
from agentrl.core.errors import InfraError
from agentrl.core.points import container_provider


@container_provider("docker")
class DockerProvider:
    """Makes containers of a Docker engine, and removes all that it made."""

    composes = True

    def __init__(self, containers: Any = None) -> None:
        self.engine = Engine()
        self.images = Images(self.engine, containers and containers.registry)
        self.networks = Networks(self.engine)
        self._composer = Composer(self.engine, self.images)

    async def ready(self) -> None:
        """Connect. Raises UserError without an engine."""
        await self.engine.ready()

    async def prepare(self, spec: ContainerSpec) -> None:
        """Have the image and the network. Raises UserError without an engine, an image or a network; InfraError."""
        await self.engine.ready()
        await self.images.have(spec)
        await self.networks.prepare(spec)
        if spec.services is not None:
            await self._composer.project(spec)

    def container(self, spec: ContainerSpec) -> DockerContainer:
        """A container that is still to be started."""
        return DockerContainer(self._composer, self.networks, spec)

    async def close(self) -> None:
        """Remove all containers and networks of the run. Never raises."""
        await self.images.close()
        self.networks.close()
        await self.engine.close()


def clean(*, images: bool) -> tuple[list[str], list[str]]:
    """Remove containers and networks of ended runs, and built images that no container uses. Returns the names of those
    that were removed, and of containers and networks that the engine did not remove.

    Raises UserError without an engine, InfraError.
    """
    client, _ = connect()
    from docker.errors import DockerException

    try:
        removed = remove_orphans(client) + (_remove_images(client) if images else [])
        return removed, orphans(client)
    except (DockerException, OSError) as error:
        raise InfraError(f"Docker: {explained(error)}") from error


def _remove_images(client: Any) -> list[str]:
    from docker.errors import APIError

    removed = []
    for image in client.images.list(filters={"label": LABEL}):
        with suppress(APIError):  # in use
            client.images.remove(image.id, force=len(image.tags) > 1)
            removed.append(f"image {(image.tags or [image.short_id])[0]}")
    return removed
