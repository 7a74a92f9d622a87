"""Containers in agentrl's own code sandbox, for tasks that need no image: they start in milliseconds, without Docker.

A container has the programs of this machine, read-only, its own processes, a working folder and a /tmp of its own, and
no network. It lacks, compared with Docker: images, root, other users, paths outside these two folders, a limit of
cores. Background jobs run only while a command runs. A verification runs as the same user as the agent did.
"""

from typing import Any

from agentrl.containers.contract import ContainerSpec
from agentrl.containers.embedded.container import EmbeddedContainer
from agentrl.core.errors import UserError
from agentrl.core.points import container_provider
from agentrl.core.sandbox import Sandbox

FIX = "set rollout.containers.provider=docker"


@container_provider("embedded")
class EmbeddedProvider:
    """One sandbox for the containers of a run. Nothing starts before the first container."""

    def __init__(self, settings: Any = None) -> None:
        self._sandbox = Sandbox()

    async def prepare(self, spec: ContainerSpec) -> None:
        """Raises UserError for what the sandbox has not."""
        if spec.image or spec.build:
            raise UserError(
                f"the embedded provider has no images, and the task wants {spec.image or spec.build}: {FIX}"
            )
        if spec.network != "none":
            raise UserError(f"the embedded provider has no network, and the task wants {spec.network!r}: {FIX}")

    def container(self, spec: ContainerSpec) -> EmbeddedContainer:
        """Describe a container of the shared sandbox."""
        return EmbeddedContainer(self._sandbox, spec)

    async def close(self) -> None:
        """End the sandbox with all its processes."""
        await self._sandbox.close()
