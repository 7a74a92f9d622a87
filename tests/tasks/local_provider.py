"""A container provider for tests: a container is a folder of this machine, and its commands are processes.

The image's name says how it behaves: `hang-build`, `hang-start`, `broken-build`, `broken-start`, or anything else.
"""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.containers import ContainerSpec, Done
from agentrl.core.errors import InfraError, UserError

ROOT = "AGENTRL_TEST_CONTAINERS"
"""Environment variable: the folder that containers lie in."""


class LocalProvider:
    """Counts what it is asked."""

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings
        self.calls: Counter[str] = Counter()
        self.alive: set[LocalContainer] = set()
        self.most: Counter[str] = Counter()
        """Most containers at once that are alive, and that start."""
        self.starting = 0
        self.closed = False

    async def prepare(self, spec: ContainerSpec) -> None:
        self.calls[f"prepare {spec.image}"] += 1
        if spec.image == "hang-build":
            await asyncio.sleep(3600)
        if spec.image == "broken-build":
            raise UserError("image broken-build is not there and cannot be pulled")
        if spec.build is not None and not (spec.build / "Dockerfile").is_file():
            raise UserError(f"{spec.build} has no Dockerfile; write one, or name another folder")

    def container(self, spec: ContainerSpec) -> "LocalContainer":
        return LocalContainer(self, spec)

    async def close(self) -> None:
        self.closed = True
        for container in list(self.alive):
            await container.stop()


class LocalContainer:
    """A folder, and processes in it."""

    def __init__(self, provider: LocalProvider, spec: ContainerSpec) -> None:
        self.provider, self.spec = provider, spec
        self.folder = Path()
        self.processes: set[asyncio.subprocess.Process] = set()

    @property
    def name(self) -> str:
        return self.folder.name

    async def start(self) -> None:
        provider = self.provider
        provider.calls["start"] += 1
        provider.alive.add(self)
        provider.starting += 1
        provider.most["alive"] = max(provider.most["alive"], len(provider.alive))
        provider.most["starting"] = max(provider.most["starting"], provider.starting)
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="container-", dir=os.environ.get(ROOT)))
            await asyncio.sleep(3600 if self.spec.image == "hang-start" else 0.01)
            if self.spec.image == "broken-start":
                raise InfraError("no space left on device")
        finally:
            provider.starting -= 1

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | None = None,
    ) -> Done:
        began = time.monotonic()
        words = ["bash", "-c", command] if isinstance(command, str) else list(command)
        # Ignored where tests run in the background. A function that runs after the fork could hang beside threads.
        words = ["env", "--default-signal=INT", *words]
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=self.folder / (cwd or "."),
            env={**os.environ, **self.spec.env, **(env or {})},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self.processes.add(process)
        try:
            out, err = await asyncio.wait_for(process.communicate(stdin), timeout)
        except TimeoutError:
            _kill(process)
            return Done(None, "", "", time.monotonic() - began)
        return Done(process.returncode, out.decode(), err.decode(), time.monotonic() - began)

    async def upload(self, source: Path, to: str) -> None:
        target = self.folder / to.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy(source, target)

    async def download(self, path: str, to: Path) -> None:
        source = self.folder / path.lstrip("/")
        _copy(source, to)

    async def host(self) -> str:
        return "127.0.0.1"

    async def stop(self) -> None:
        self.provider.calls["stop"] += 1
        await asyncio.sleep(0)
        for process in self.processes:
            _kill(process)
        if self.folder.name:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.provider.alive.discard(self)


def _copy(source: Path, to: Path) -> None:
    shutil.copytree(source, to, dirs_exist_ok=True) if source.is_dir() else shutil.copy(source, to)


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
