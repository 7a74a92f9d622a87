"""Runs containers by Harbor's environment classes, in an interpreter that has Harbor.

    python worker.py SETTINGS SOCKET    serves requests, one a connection

SETTINGS is a file of JSON: Harbor's section `environment`, with `type` or `import_path`, and `kwargs`. Requests and
answers are lines of JSON. A request ends with its connection; all containers are stopped with this process.
"""

import asyncio
import json
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import agentrl_served as served

Asked = dict[str, Any]


class Boxes:
    """The containers of a run, by name."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.running: dict[str, Any] = {}

    async def answer(self, asked: Asked) -> Asked:
        """What was asked for, or the error of the vendor."""
        try:
            return await self.do(asked)
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:2000]}"}

    async def do(self, asked: Asked) -> Asked:
        """Start or stop a container, or call a method of its environment."""
        name, do = asked.pop("name"), asked.pop("do")
        if do == "start":
            self.running[name] = self.made(name, **asked)
            await self.running[name].start(force_build=False)
        elif do == "stop":
            await asyncio.shield(self.stop(name))  # which its client's end does not cancel
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


async def serve(settings: dict[str, Any], path: str) -> None:
    """Answer until SIGTERM, then remove all containers."""
    boxes, serving = Boxes(settings), asyncio.current_task()
    assert serving is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    with suppress(asyncio.CancelledError):
        await served.serve(path, boxes.answer)
    await asyncio.gather(*map(boxes.stop, list(boxes.running)), return_exceptions=True)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        given = json.load(file)
    asyncio.run(serve(given, sys.argv[2]))
