"""Images of containers: there, pulled, or built from a folder and cached by its content."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentrl.containers.contract import ContainerSpec
from agentrl.containers.docker.engine import Engine
from agentrl.core.errors import UserError
from agentrl.core.user_errors import one_line


@dataclass(frozen=True)
class Image:
    """An image that is there."""

    name: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    """Runs in its containers unless they are given another."""


class Images:
    """The images of one run. Each is looked for, pulled or built at most once at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._locks: dict[str, asyncio.Lock] = {}
        self._there: dict[str, Image] = {}

    async def have(self, spec: ContainerSpec) -> Image:
        """Have a container's image. Raises UserError, InfraError."""
        name = spec.image
        if name is None:
            raise UserError("a container needs `image`, or `build` with a folder that has a Dockerfile")
        async with self._locks.setdefault(name, asyncio.Lock()):
            if name not in self._there:
                self._there[name] = await self._engine.call(_have, self._engine.client, name)
        return self._there[name]


def _have(client: Any, image: str) -> Image:
    """Pull an image that is not there. Raises UserError."""
    from docker.errors import DockerException, ImageNotFound

    with suppress(ImageNotFound):
        return _described(image, client.images.get(image))
    try:
        return _described(image, client.images.pull(*with_tag(image)))
    except DockerException as error:
        raise UserError(f"image: {image} is not there and cannot be pulled: {one_line(error)}") from None


def _described(name: str, found: Any) -> Image:
    config = found.attrs.get("Config") or {}
    return Image(name, tuple(config.get("Entrypoint") or ()), tuple(config.get("Cmd") or ()))


def with_tag(image: str) -> tuple[str, str | None]:
    """Name and tag: without a tag all of them would be pulled."""
    name, colon, tag = image.rpartition(":")
    return (name, tag) if colon and "/" not in tag and "@" not in image else (image, None if "@" in image else "latest")
