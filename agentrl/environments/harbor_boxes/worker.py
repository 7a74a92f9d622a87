"""Runs containers by Harbor's environment classes, in an interpreter that has Harbor.

    python worker.py SETTINGS SOCKET    serves requests, one a connection

SETTINGS is a file of JSON: Harbor's section `environment`, with `type` or `import_path`, and `kwargs`. Requests and
answers are lines of JSON. A request ends with its connection; all containers are stopped with this process.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

Asked = dict[str, Any]


class Boxes:
    """The containers of a run, by name."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.running: dict[str, Any] = {}

    async def do(self, asked: Asked) -> Asked:
        """Start or stop a container, or call a method of its environment."""
        name, do = asked.pop("name"), asked.pop("do")
        if do == "start":
            self.running[name] = self.made(name, **asked)
            await self.running[name].start(force_build=False)
        elif do == "stop":
            await self.stop(name)
        elif name not in self.running:
            raise RuntimeError("it does not run")
        else:
            done = await getattr(self.running[name], do)(**asked)
            return {} if done is None else {"output": done.stdout or "", "error": done.stderr or ""}
        return {}

    def made(self, name: str, *, spec: Asked, folder: str | None, network: Asked) -> Any:
        """An environment of Harbor's that is still to be started."""
        from harbor.environments.factory import EnvironmentFactory
        from harbor.models.task.config import EnvironmentConfig, NetworkPolicy
        from harbor.models.trial.config import EnvironmentConfig as Section
        from harbor.models.trial.paths import TrialPaths

        own = Path(tempfile.mkdtemp())
        paths = TrialPaths(own / "trial")
        paths.mkdir()
        return EnvironmentFactory.create_environment_from_config(
            Section(**self.settings),
            environment_dir=Path(folder or own),
            environment_name=name,
            session_id=f"{name}__env",
            trial_paths=paths,
            task_env_config=EnvironmentConfig(**spec),
            network_policy=NetworkPolicy(**network),
        )

    async def stop(self, name: str) -> None:
        """Remove a container, if it is there."""
        if (box := self.running.pop(name, None)) is not None:
            await box.stop(delete=True)


async def answer(boxes: Boxes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Do what one connection asks for. Its end cancels all but the removal of a container."""
    asked = json.loads(await reader.readline())
    stops = asked["do"] == "stop"
    work, closed = asyncio.ensure_future(boxes.do(asked)), asyncio.ensure_future(reader.read())
    await asyncio.wait([work] if stops else [work, closed], return_when=asyncio.FIRST_COMPLETED)
    work.cancel()
    try:
        found = await work
    except (Exception, asyncio.CancelledError) as error:  # a vendor's
        found = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:2000]}"}
    closed.cancel()
    with suppress(OSError):
        writer.write(json.dumps(found).encode() + b"\n")
        await writer.drain()
    writer.close()


async def serve(settings: dict[str, Any], path: str) -> None:
    """Answer until SIGTERM."""
    boxes, ended = Boxes(settings), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await asyncio.start_unix_server(lambda *ends: answer(boxes, *ends), f"{path}.new", limit=2**26, backlog=2048)
    os.rename(f"{path}.new", path)  # it is there once it answers
    await ended.wait()
    await asyncio.gather(*map(boxes.stop, list(boxes.running)), return_exceptions=True)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        given = json.load(file)
    asyncio.run(serve(given, sys.argv[2]))
