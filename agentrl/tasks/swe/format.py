"""Verifies a change of a repository by the tests of its row.

Invariants: the files of the tests are made before the agent, kept out of its container, and replace there whatever the
agent made of them; the log is a file of a random name; tests that take too long, or write nothing, have failed.
"""

import asyncio
import secrets
from pathlib import Path
from tempfile import TemporaryDirectory

from agentrl.containers import Container
from agentrl.core.errors import InfraError, last_line
from agentrl.core.points import task_format
from agentrl.tasks.format import SET_UP_TIMEOUT, TaskArguments, Verdict
from agentrl.tasks.harbor.processes import look, stop_left
from agentrl.tasks.plain import TAIL, PlainContainer
from agentrl.tasks.swe.logs import shares, summary

PROGRAMS = "/tmp/agentrl-programs.sh"
"""Read by each bash of the agent: the programs of the repository's environment come first."""
MOST_LOG = 16 * 2**20
"""Bytes of the tests' output that are read, from its end."""
TAKE = (Path(__file__).parent / "take.sh").read_text(encoding="utf-8")
RUN = 'mkdir -m 700 "$0" && cat >"$0/run" && bash "$0/run" >"$0/log" 2>&1 </dev/null; tail -c $1 "$0/log" >"$0/end"'


@task_format("swe")
class SweTask(PlainContainer):
    """A repository in a container: `container`, as rows write it; `tests`, as `agentrl.tasks.swe.rows` makes them."""

    def __init__(self, arguments: TaskArguments) -> None:
        container = {"env": {}, **arguments["container"]}
        super().__init__(container | {"env": {"BASH_ENV": PROGRAMS} | container["env"]})
        self._tests = arguments["tests"]
        self.set_up_timeout += 3 * SET_UP_TIMEOUT

    async def set_up(self, container: Container) -> None:
        """Take the tests out. Raises InfraError, also where a patch of the row does not apply."""
        await super().set_up(container)
        self._kept, folder = self._patches(), f"/tmp/{secrets.token_hex(16)}"
        await container.upload(Path(self._kept.name), folder)
        words = ["bash", "-c", TAKE, folder, PROGRAMS, str(self._tests["hide"]), *self._tests["files"]]
        done = await container.exec(words, timeout=SET_UP_TIMEOUT)
        if done.code != 0:
            raise InfraError(f"the row's patches do not apply: {last_line(done.output)}")
        await container.download(f"{folder}/files", Path(self._kept.name, "files"))
        await container.exec(["rm", "-rf", folder], timeout=SET_UP_TIMEOUT)
        self._before = (await look(container)).processes

    async def verify(self, container: Container, logs: Path) -> Verdict:
        """Put the tests in, run them, read the log. Raises InfraError."""
        await stop_left(container, self._before)
        folder, end = f"/tmp/{secrets.token_hex(16)}", logs / "test-output.txt"
        workdir = (await container.exec("pwd", timeout=SET_UP_TIMEOUT)).stdout.strip()
        await container.exec(["rm", "-rf", *self._tests["files"], "/etc/ld.so.preload"], timeout=SET_UP_TIMEOUT)
        await container.upload(Path(self._kept.name, "files"), workdir)
        words, env = ["bash", "-c", RUN, folder, str(MOST_LOG)], {"BASH_ENV": ""}
        done = await container.exec(words, timeout=self._verify_limit, env=env, stdin=str(self._verify).encode())
        if done.code is None:
            return Verdict(0.0, output=f"the tests took longer than {self._verify_limit:g} s")
        await container.download(f"{folder}/end", end)
        return await asyncio.to_thread(self._verdict, end.read_text(errors="replace"))

    def _patches(self) -> TemporaryDirectory[str]:
        folder = TemporaryDirectory(prefix="agentrl-tests-")
        for name in ("bug", "test"):
            Path(folder.name, f"{name}.patch").write_text(self._tests.get(name) or "", newline="")
        return folder

    def _verdict(self, log: str) -> Verdict:
        if expected := self._tests["expected"]:
            return Verdict(float(summary(log) == expected), output=log[-TAIL:])
        found = shares(log, self._tests["log"], self._tests["names"])
        return Verdict(float(min(found.values()) == 1), found, log[-TAIL:])
