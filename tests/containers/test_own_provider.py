"""A container provider of one's own: one class, named by its path."""

import os
from pathlib import Path

import pytest

from agentrl.containers.contract import ContainerSpec
from agentrl.core.errors import UserError
from agentrl.core.points import CONTAINER_PROVIDERS

KEY = "rollout.containers.provider"
OWN = '''
import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from agentrl.containers import Done


class Folders:
    """Folders of this machine instead of containers: for commands that may be trusted."""

    def __init__(self, settings):
        self.made = []

    async def prepare(self, spec):
        pass

    def container(self, spec):
        self.made.append(Folder(spec))
        return self.made[-1]

    async def close(self):
        for folder in self.made:
            await folder.stop()


class Folder:
    def __init__(self, spec):
        self.spec, self.root = spec, Path("/none")

    @property
    def name(self):
        return str(self.root)

    async def start(self):
        self.root = Path(tempfile.mkdtemp())

    async def exec(self, command, *, timeout, cwd=None, env=None, user=None, stdin=None):
        words = ["sh", "-c", command] if isinstance(command, str) else command
        start, pipe = time.monotonic(), asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *words, cwd=cwd or self.root, env={**self.spec.env, **(env or {})}, stdin=pipe, stdout=pipe, stderr=pipe
        )
        out, err = await asyncio.wait_for(process.communicate(stdin), timeout)
        return Done(process.returncode, out.decode(), err.decode(), time.monotonic() - start)

    async def upload(self, source, to):
        await asyncio.to_thread(shutil.copy, source, self.root / to)

    async def download(self, path, to):
        await asyncio.to_thread(shutil.copy, self.root / path, to)

    async def host(self):
        return "127.0.0.1"

    async def stop(self):
        await asyncio.to_thread(shutil.rmtree, self.root, ignore_errors=True)
'''


async def test_a_class_named_by_its_path_makes_containers(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    provider = CONTAINER_PROVIDERS.make(f"{tmp_path}/mine.py:Folders", KEY, None)
    spec = ContainerSpec(env={"PATH": "/usr/bin:/bin", "NAME": "value"})
    await provider.prepare(spec)
    container = provider.container(spec)
    await container.start()
    done = await container.exec('echo "$NAME"; cat; exit 3', timeout=30, stdin=b"given")
    assert (done.code, done.output) == (3, "value\ngiven")
    await provider.close()
    assert provider.made[0].root.name not in os.listdir(provider.made[0].root.parent)


def test_a_class_that_misses_a_method_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN.replace("async def prepare", "async def ready"))
    with pytest.raises(UserError, match="prepare"):
        CONTAINER_PROVIDERS.make(f"{tmp_path}/mine.py:Folders", KEY, None)
