"""Images of containers: there, pulled, or built from a folder and cached by its content."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from agentrl.containers.contract import ContainerSpec
from agentrl.containers.docker.build import build, pack
from agentrl.containers.docker.engine import Engine, explained
from agentrl.core.errors import InfraError, UserError


@dataclass(frozen=True)
class Image:
    """An image that is there."""

    name: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    """Runs in its containers unless they are given another."""


class Images:
    """The images of one run. All who need one at the same time wait for one attempt to have it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._attempts: dict[str | Path, asyncio.Task[Image]] = {}

    async def have(self, spec: ContainerSpec) -> Image:
        """Have a container's image. Raises UserError, InfraError."""
        key = spec.image or spec.build
        if key is None:
            raise UserError("a container needs `image`, or `build`: a folder with a Dockerfile")
        attempt = self._attempts.get(key)
        if attempt is None or (attempt.done() and (attempt.cancelled() or attempt.exception() is not None)):
            attempt = self._attempts[key] = asyncio.create_task(self._have(spec))
        return await asyncio.shield(attempt)

    def forget(self, spec: ContainerSpec) -> None:
        """An image was removed: get it again for the next container."""
        self._attempts.pop(spec.image or spec.build or "", None)

    async def close(self) -> None:
        """End the builds that go on."""
        for attempt in self._attempts.values():
            attempt.cancel()
        await asyncio.gather(*self._attempts.values(), return_exceptions=True)

    async def _have(self, spec: ContainerSpec) -> Image:
        if spec.image or not spec.build:
            return await self._engine.call(_pulled, self._engine.client, spec.image)
        with TemporaryFile() as context:
            tag = await self._engine.call(pack, spec.build, context)
            found = await self._engine.call(_found, self._engine.client, tag)
            if found is None:
                await build(spec.build, tag, context, spec.build_timeout, self._engine.env)
                found = await self._engine.call(_found, self._engine.client, tag)
        if found is None:
            raise InfraError(f"{spec.build}: its image {tag} was removed")
        return found


def _pulled(client: Any, image: str) -> Image:
    """Pull an image that is not there. Raises UserError."""
    from docker.errors import DockerException

    found = _found(client, image)
    if found is not None:
        return found
    try:
        return _described(image, client.images.pull(*with_tag(image)))
    except DockerException as error:
        raise UserError(f"image: {image} is not there and cannot be pulled: {explained(error)}") from None


def _found(client: Any, image: str) -> Image | None:
    from docker.errors import ImageNotFound

    try:
        return _described(image, client.images.get(image))
    except ImageNotFound:
        return None


def _described(name: str, found: Any) -> Image:
    config = found.attrs.get("Config") or {}
    return Image(name, tuple(config.get("Entrypoint") or ()), tuple(config.get("Cmd") or ()))


def with_tag(image: str) -> tuple[str, str | None]:
    """Name and tag: without a tag all of them would be pulled."""
    name, colon, tag = image.rpartition(":")
    return (name, tag) if colon and "/" not in tag and "@" not in image else (image, None if "@" in image else "latest")
