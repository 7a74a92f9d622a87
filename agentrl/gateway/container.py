"""One container: made, run, read, removed."""

import asyncio
import io
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.gateway.containers import Containers
from agentrl.gateway.process import TAIL, Ended

MOST_BYTES = 256 * 2**20
"""Of the folder that is kept."""
LOG = {"max-size": "4m", "max-file": "1"}


class Container:
    """A program's container, from its start to its removal."""

    def __init__(self, containers: Containers, raw: Any) -> None:
        self._containers, self._raw = containers, raw

    async def start(self) -> None:
        """Run its command. Raises InfraError."""
        await self._containers.call(self._raw.start)

    async def wait(self, timeout: float) -> int:
        """Its exit code. Raises InfraError."""
        result: dict[str, int] = await self._containers.call(self._raw.wait, timeout=timeout + 60)
        return result["StatusCode"]

    async def stop(self) -> None:
        """End all its processes and remove it."""
        await self._containers.call(_unless_gone, self._raw.remove, force=True, v=True)

    async def kill(self) -> None:
        """End all its processes."""
        await self._containers.call(_unless_gone, self._raw.kill)

    async def output(self) -> str:
        """The end of what it wrote, to stdout and stderr."""
        written: bytes = await self._containers.call(self._raw.logs, tail=1000)
        return written[-TAIL:].decode(errors="replace")

    async def make_folder(self, path: str) -> None:
        """Make an empty folder in it."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o777
            tar.addfile(entry)
        await self._containers.call(self._raw.put_archive, "/", archive.getvalue())

    async def download(self, path: str, to: Path) -> None:
        """Copy the content of a folder in it to the folder `to`. Raises InfraError where it is too large."""
        await self._containers.call(self._download, path, to)

    def _download(self, path: str, to: Path) -> None:
        chunks, _ = self._raw.get_archive(path)
        with tempfile.TemporaryFile() as file:
            for chunk in chunks:
                file.write(chunk)
                if file.tell() > MOST_BYTES:
                    raise InfraError(f"{path} has more than {MOST_BYTES >> 20} MiB")
            file.seek(0)
            with tarfile.open(fileobj=file) as tar:
                tar.extractall(to, filter=_harmless)


def _unless_gone(call: Callable[..., None], **options: bool) -> None:
    """Call it; a container that has ended or is being removed is fine."""
    from docker.errors import APIError

    try:
        call(**options)
    except APIError as error:
        if error.status_code not in (404, 409):
            raise


def _harmless(member: tarfile.TarInfo, to: str) -> tarfile.TarInfo | None:
    """The member under its path in the folder; None for one that would leave it: the model made these files."""
    _, _, member.name = member.name.partition("/")
    if not member.name:
        return None
    try:
        return tarfile.data_filter(member, to)
    except tarfile.FilterError:
        return None


async def run_container(
    containers: Containers,
    words: Sequence[str],
    env: Mapping[str, str],
    folder: Path,
    timeout: float,
    until: Callable[[], Awaitable[Any]],
) -> Ended:
    """Run an image until it ends, `until` is done or `timeout` seconds have passed; its files are then in `folder`."""
    create = asyncio.ensure_future(containers.call(_create, containers, words, env))
    try:
        container = Container(containers, await asyncio.shield(create))
        await container.make_folder(containers.settings.folder)
        await container.start()
        code = await _end(container, timeout, until)
        ended = Ended(code, await container.output())
        await container.download(containers.settings.folder, folder)
        return ended
    finally:
        await asyncio.wait([create])
        if create.exception() is None:
            await asyncio.shield(Container(containers, create.result()).stop())


async def _end(container: Container, timeout: float, until: Callable[[], Awaitable[Any]]) -> int | None:
    """Its exit code; None where it was ended by us."""
    waits = [asyncio.ensure_future(container.wait(timeout)), asyncio.ensure_future(until())]
    try:
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if waits[0].done():
            return waits[0].result()
        await container.kill()
        return None
    finally:
        for wait in waits:
            wait.cancel()


def _create(containers: Containers, words: Sequence[str], env: Mapping[str, str]) -> Any:
    from docker.types import LogConfig

    settings = containers.settings
    return containers.client.containers.create(
        settings.image,
        list(words) or None,
        environment=dict(env),
        labels=containers.labels,
        network=containers.network,
        mem_limit=settings.memory,
        memswap_limit=settings.memory,
        nano_cpus=int(settings.cpus * 1e9),
        pids_limit=settings.processes,
        init=True,
        log_config=LogConfig(type=LogConfig.types.JSON, config=LOG),
    )
