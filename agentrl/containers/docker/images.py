"""Images of containers: there, pulled, or built from a folder and cached by its content."""

import asyncio
import hashlib
import logging
import re
import sys
import tarfile
from asyncio.subprocess import STDOUT
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from agentrl.containers.commands import Command, piped
from agentrl.containers.contract import ContainerSpec
from agentrl.containers.docker.engine import Engine, described, explained, require_docker
from agentrl.containers.docker.registry import BUILT, pull, push, reference
from agentrl.core.errors import InfraError, UserError
from agentrl.core.tasks import cancelled

log = logging.getLogger(__name__)

LABEL = "agentrl.image"
"""Label of all images that agentrl builds; its value is their tag."""
LAST_LINES = 20
CODES = re.compile(r"\x1b\[[0-9;]*m")
DOCKERFILE_FAILS = 1
NOT_PULLED = "rollout.containers.registry=%s: %s is not pulled from there: %s; it is built or pulled from elsewhere"


@dataclass(frozen=True)
class Image:
    """An image that is there."""

    name: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    """Runs in its containers unless they are given another."""


class Images:
    """The images of one run. All who need one at the same time wait for one attempt to have it."""

    def __init__(self, engine: Engine, registry: str | None = None) -> None:
        """`registry`: `rollout.containers.registry`."""
        self._engine, self._registry = engine, registry
        self._reasons = set[type[Exception]]()  # why images do not come from the registry: each is logged once
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

    async def push(self, spec: ContainerSpec, registry: str) -> str:
        """Have a container's image, and push it; gives its name there. Raises UserError, InfraError."""
        image = (await self.have(spec)).name
        return await self._engine.call(push, self._engine.client, registry, spec.image or image, image)

    def forget(self, spec: ContainerSpec) -> None:
        """An image was removed: get it again for the next container."""
        self._attempts.pop(spec.image or spec.build or "", None)

    async def close(self) -> None:
        """End the builds that go on."""
        await cancelled(self._attempts.values())

    async def _have(self, spec: ContainerSpec) -> Image:
        if spec.image or not spec.build:
            return await self._engine.call(self._pulled, spec.image)
        with TemporaryFile() as context:
            tag = await self._engine.call(pack, spec.build, context)
            found = await self._engine.call(self._there, tag)
            if found is None:
                await build(spec.build, tag, context, spec.build_timeout, self._engine.env)
                found = await self._engine.call(_found, self._engine.client, tag)
        return found

    def _pulled(self, name: str) -> Image:
        """Pull an image that is not there. Raises UserError."""
        from docker.errors import DockerException

        found = self._there(name)
        if found is not None:
            return found
        try:
            return _described(name, self._engine.client.images.pull(name))
        except DockerException as error:
            raise UserError(f"image: {name} is not there and cannot be pulled: {explained(error)}") from None

    def _there(self, name: str) -> Image | None:
        """An image of this machine, or of the registry."""
        from docker.errors import DockerException, ImageNotFound

        with suppress(ImageNotFound):
            return _found(self._engine.client, name)
        if self._registry is None:
            return None
        try:
            pulled = pull(self._engine.client, self._registry, name)
            return _described(pulled.id if "@" in name else name, pulled)
        except DockerException as error:
            if type(error) not in self._reasons:
                self._reasons.add(type(error))
                log.warning(NOT_PULLED, self._registry, name, explained(error))
            return None


def name_of_folder(folder: Path, registry: str) -> str:
    """The name in a registry of the image that is built from a folder. Raises UserError."""
    require_docker()
    with TemporaryFile() as context:
        return ":".join(reference(registry, pack(folder, context)))


def _found(client: Any, image: str) -> Image:
    """An image of this machine. Raises ImageNotFound."""
    return _described(image, client.images.get(image))


def _described(name: str, found: Any) -> Image:
    config = found.attrs.get("Config") or {}
    return Image(name, tuple(config.get("Entrypoint") or ()), tuple(config.get("Cmd") or ()))


def pack(folder: Path, file: IO[bytes]) -> str:
    """Write the files that the build sees as a tar archive; the tag of their image. Raises UserError."""
    from docker.utils.build import exclude_paths

    if not (folder / "Dockerfile").is_file():
        raise UserError(f"{folder}: it has no Dockerfile; add one, or name an image")
    digest = hashlib.sha256()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:  # BuildKit knows it by its first bytes
        for name in sorted(exclude_paths(str(folder), _ignored(folder))):
            member = tar.gettarinfo(str(folder / name), name)
            if member is not None:
                _add(tar, member, folder / name, digest)
    file.seek(0)
    return f"{BUILT}{digest.hexdigest()[:32]}"


def _add(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path, digest: "hashlib._Hash") -> None:
    digest.update(f"{member.name}\0{member.type!r}\0{member.mode & 0o111:o}\0{member.linkname}\0".encode())
    if not member.isfile():
        tar.addfile(member)
        return
    with path.open("rb") as content:
        digest.update(hashlib.file_digest(content, "sha256").digest())
        content.seek(0)
        tar.addfile(member, content)


def _ignored(folder: Path) -> list[str]:
    file = folder / ".dockerignore"
    lines = file.read_text().splitlines() if file.is_file() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


async def build(folder: Path, tag: str, context: IO[bytes], timeout: float, env: Mapping[str, str]) -> None:
    """Build the image of a packed folder. Raises UserError where its Dockerfile fails, InfraError."""
    from agentrl.containers.docker import builder

    command, words = Command([], timeout), [sys.executable, "-P", builder.__file__, tag, LABEL]
    try:
        async with asyncio.timeout(timeout):
            code = await piped(words, command, stdin=context, stderr=STDOUT, env=env)
    except TimeoutError:
        last = _last(_lines(command))
        raise InfraError(f"{folder}: its image is not built within {timeout:g} s; last line: {last}") from None
    _check(code, folder, _lines(command))


def _lines(command: Command) -> Sequence[str]:
    """The last lines of a build, without colours."""
    lines = CODES.sub("", command.stdout.text()).splitlines()
    return [line.rstrip()[-500:] for line in lines if line.strip()][-LAST_LINES:]


def _check(code: int, folder: Path, lines: Sequence[str]) -> None:
    if not code:
        return
    full = next((line for line in lines if "no space left on device" in line.lower()), "")
    last = described(full or _last(lines))
    if code != DOCKERFILE_FAILS or last != _last(lines):
        raise InfraError(f"{folder}: its image is not built: {last}")
    error = UserError(f"{folder}/Dockerfile fails: {last}")
    error.details = tuple(lines)
    raise error


def _last(lines: Sequence[str]) -> str:
    return lines[-1] if lines else "none"
