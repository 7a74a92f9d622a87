"""The parts that providers of clusters share: options, images that nodes know by name, and two networks."""

import asyncio
from inspect import signature
from pathlib import Path
from typing import Generic, TypeVar

from agentrl.config.schema.rollout import Containers
from agentrl.containers.contract import ContainerSpec
from agentrl.containers.docker.images import name_of_folder
from agentrl.core.errors import UserError
from agentrl.core.plugin_checks import check_keys

S = TypeVar("S")
NOT_BUILT = (
    "this provider builds no image: name one in the row, or push those of task folders by `agentrl tasks build --push` "
    "and set rollout.containers.registry"
)


class ClusterProvider(Generic[S]):
    """A provider that builds no image: those of folders are in the registry."""

    def __init__(self, containers: Containers, settings: type[S]) -> None:
        """`settings`: class of `rollout.containers.options`."""
        check_keys(containers.options, signature(settings).parameters, "rollout.containers.options")
        self.settings, self._registry = settings(**containers.options), containers.registry
        self._lock = asyncio.Lock()
        self._folders: dict[Path, str] = {}
        """Names of the images of folders, each of which is read once."""

    def check_network(self, spec: ContainerSpec) -> None:
        """Raises UserError for a network other than `none` and `full`."""
        if spec.network not in ("none", "full"):
            raise UserError(f"this provider has no network {spec.network!r}: give none, or full")

    async def image_name(self, spec: ContainerSpec) -> str:
        """The name by which nodes pull a spec's image. Raises UserError."""
        if spec.image:
            return spec.image
        if spec.build is None or self._registry is None:
            raise UserError(NOT_BUILT)
        async with self._lock:  # containers of a batch begin at once
            if spec.build not in self._folders:
                self._folders[spec.build] = await asyncio.to_thread(name_of_folder, spec.build, self._registry)
        return self._folders[spec.build]
