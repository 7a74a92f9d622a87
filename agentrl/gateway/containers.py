"""Agent programs in containers: one for each rollout, in a folder that is kept."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.containers.contract import Container, ContainerSpec
from agentrl.core.clocks import uncounted
from agentrl.core.tasks import ends_first
from agentrl.gateway.process import KEPT_OUTPUT_BYTES, Ended

Until = Callable[[], Awaitable[Any]]
SET_UP_SECONDS = 60.0
NEVER = 24 * 3600.0
"""Seconds: the program's own limit ends its command."""
MAKE_FOLDER = ["sh", "-c", 'mkdir -p "$0" && chmod 777 "$0"']


class ProgramContainers:
    """The containers of one program."""

    def __init__(self, spec: ContainerSpec, folder: str) -> None:
        """`folder`: the one in them that is kept."""
        from agentrl.containers.docker.provider import DockerProvider

        self.spec, self.folder = spec, folder
        self._provider = DockerProvider()

    async def ready(self, host: str | None) -> str:
        """Have the image; gives this host's address in the containers' network: `host`, or the one that Docker tells.
        Raises UserError."""
        await self._provider.prepare(self.spec)
        return host or await self._provider.networks.address(self.spec)

    async def run(self, words: Sequence[str], env: Mapping[str, str], folder: Path, until: Until) -> Ended:
        """Run a program until it ends or `until` is done; its files are then in
        `folder`. Raises InfraError."""
        container = self._provider.container(self.spec)
        image = await self._provider.images.have(self.spec)
        words = [*image.entrypoint, *(words or image.command)]
        try:
            with uncounted():
                await container.start()
                await container.exec([*MAKE_FOLDER, self.folder], timeout=SET_UP_SECONDS, user="0")
            ended = await run_in(container, words, env, until)
            await container.download(self.folder, folder)
            return ended
        finally:
            await asyncio.shield(container.stop())


async def run_in(container: Container, words: Sequence[str], env: Mapping[str, str], until: Until) -> Ended:
    """Run a program in a started container until it ends or `until` is done. Raises InfraError."""
    command = asyncio.ensure_future(container.exec(words, env=env, timeout=NEVER))
    if not await ends_first(command, until()):
        return Ended(None, "")
    done = command.result()
    return Ended(done.code, done.output[-KEPT_OUTPUT_BYTES:])
