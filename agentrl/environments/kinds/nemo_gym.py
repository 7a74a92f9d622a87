"""Resource servers of NeMo Gym: the rows are lines of its data files (see `agentrl.environments.nemo_gym`)."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentrl.core.errors import InfraError, UserError, reported_as
from agentrl.core.paths import expanded
from agentrl.core.points import environment_kind
from agentrl.data.files import paths, read_records
from agentrl.environments.entry import EnvironmentEntry
from agentrl.environments.nemo_gym.server import EXAMPLE, GymServer, GymServers, started
from agentrl.environments.nemo_gym.task import NOTHING, GymLine
from agentrl.environments.own import EnvironmentKind, interpreter, require
from agentrl.trajectory.row import Row

LOOP, STEPPED = "nemo_gym", "nemo_gym_steps"


@environment_kind("nemo_gym")
@dataclass(kw_only=True)
class NemoGymServer(EnvironmentKind):
    """The rows of one server, or of all those that a head server started.

    `id`: the URL of a running server; or the name of one that runs in the interpreter `python`, with the configuration
    `kwargs`. `data`, `val_data`: files of rows for training and for validation, relative to `folder`. Raises UserError.
    """

    python: str | None = None
    data: str | None = None
    val_data: str | None = None

    def __post_init__(self) -> None:
        id = self.id
        require("aiohttp", f"nemo_gym: {id}")
        self.url = id.rstrip("/") if urlsplit(id).scheme in ("http", "https") else None
        if self.url and (self.kwargs or self.python):
            raise UserError(f"nemo_gym: {id} runs already: leave out python and kwargs, or name the server")
        if self.url is None and (":" in id or ("/" in id and not id.endswith(".py"))):
            raise UserError(f"nemo_gym: {id} is no server: write its name, or the address of a running one, {EXAMPLE}")
        self.python = None if self.url else interpreter(self.python, self.folder, "nemo-gym")
        self.settings = json.dumps({"id": id, "kwargs": self.kwargs})

    def rows(self, entry: EnvironmentEntry, held_out: bool) -> list[Row]:
        """The lines of a file, each checked against its server. Raises UserError."""
        key, written = ("val_data", self.val_data) if held_out else ("data", self.data)
        if written is None:
            raise UserError(f"environment {entry.name}: it has no {key}: write `{key}: rows.jsonl`, a file of NeMo Gym")
        source = written if "://" in written else Path(self.folder, expanded(written))
        (file,) = paths(source, f"environment {entry.name}: {key}")
        servers = self._servers(entry)
        read = []
        for number, line in enumerate(read_records(file), 1):
            with reported_as(f"environment {entry.name}: {file}:{number}"):
                read.append((number, line, servers.of(line), GymLine.of(line)))
        executing = {server.url for *_, server, task in read if server.steps or server.executes(task.tools)}
        first = {server.url: number for number, _, server, _ in reversed(read)}
        made: list[Row] = []
        for number, line, server, task in read:
            with reported_as(f"environment {entry.name}: {file}:{number}"):
                _check(line, server, task, executed=server.url in executing, first=first[server.url] == number)
            about: dict[str, Any] = {"environment": entry.to_json(), "line": dict(line), "url": server.url}
            about["executed"] = server.url in executing
            prompt, loop = task.prompt or [{"role": "user", "content": NOTHING}], STEPPED if server.steps else LOOP
            uid = f"env:{entry.name}:{file.name}:{number}"
            made.append(Row(uid, prompt, data_source=entry.name, extra_info=about, agent_name=loop))
        return made

    async def address(self, row: Row) -> str:
        """The address of a row's server; one that this process starts is started again after it died. Raises
        InfraError."""
        if self.python is None:
            return str(row.extra_info["url"])
        return await asyncio.to_thread(started(self.python, self.settings, self.folder).url)

    def _servers(self, entry: EnvironmentEntry) -> GymServers:
        try:
            return GymServers(self.url or started(str(self.python), self.settings, self.folder).url())
        except (InfraError, UserError) as error:
            raise UserError(f"environment {entry.name}: {error}") from None


def _check(line: Mapping[str, Any], server: GymServer, task: GymLine, *, executed: bool, first: bool) -> None:
    """`executed`: the server carries out calls; `first`: the line is the first of its server. Raises UserError for a
    line that cannot be served."""
    for trouble in server.lacks(line, task.tools if executed else []):
        raise UserError(trouble)
    if first and (complaint := server.refuses(line)):
        raise UserError(f"{server.url} refuses it: {complaint}")
    if not task.prompt and not server.steps:
        raise UserError("its input is empty: write the prompt")
