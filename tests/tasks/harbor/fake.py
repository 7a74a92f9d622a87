"""A container provider of this process: it runs no command, and has what a test says as the result of the tests."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agentrl.containers import ContainerSpec, Done
from agentrl.core.errors import InfraError, UserError

Answer = Callable[["FakeContainer", str], Done | None]


class FakeContainer:
    """Notes what happens to it."""

    def __init__(self, spec: ContainerSpec, answer: Answer) -> None:
        self.spec, self.answer = spec, answer
        self.name = "fake"
        self.happened: list[str] = []
        self.rewards = "0"
        self.stopped = False

    async def start(self) -> None:
        self.happened.append("start")

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
        text = command if isinstance(command, str) else " ".join(command)
        self.happened.append(text)
        await asyncio.sleep(0)
        fails = text.endswith("test -e /tests")  # there is no such folder
        return self.answer(self, text) or Done(int(fails), "", "", 0.0)

    async def upload(self, source: Path, to: str) -> None:
        self.happened.append(f"upload {source.name} {to}")

    async def download(self, path: str, to: Path) -> None:
        (to / "reward.txt").write_text(self.rewards)

    async def host(self) -> str:
        raise InfraError("no network")

    async def stop(self) -> None:
        self.stopped = True


class FakeProvider:
    """Its images cannot be built for folders named `unbuildable`."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.made: list[FakeContainer] = []
        self.closed = False

    async def prepare(self, spec: ContainerSpec) -> None:
        if spec.build and spec.build.parent.name == "unbuildable":
            raise UserError("the image cannot be built")

    def container(self, spec: ContainerSpec) -> FakeContainer:
        self.made.append(FakeContainer(spec, self.answer))
        return self.made[-1]

    async def close(self) -> None:
        self.closed = True
