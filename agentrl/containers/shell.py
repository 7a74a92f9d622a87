"""A shell in a container that keeps its state between commands: current folder, variables, functions, background jobs.

Invariants:
- it needs `exec` of the container and nothing more than sh, mkfifo, cat, head, tail and wc in it;
- every command ends within its time limit and the grace after it;
- what a background job prints later never becomes output of another command.
"""

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal
from uuid import uuid4

from agentrl.containers.contract import Container, Done
from agentrl.containers.shell_scripts import CALL, END, INTERRUPT, LOOP, PREPARE, START
from agentrl.core.errors import InfraError, last_line

SHELLS = ("bash", "ash", "sh")
"""In the order of choice."""
START_TIMEOUT = 30.0
"""Seconds for a shell to start or to end."""
GRACE = 2.0
"""Seconds from Ctrl-C to SIGKILL."""
ARGUMENT_BYTES = 32 << 10
"""Bytes of a command that travel as an argument."""
FLOOD_BYTES = 16 << 20
"""Bytes of output after which a command is interrupted."""

KILLED = 137
"""Exit code of what got a SIGKILL: in a container mostly for its limit of memory."""

CommandEnd = Literal["exit", "timeout", "flood", "memory", "shell"]
"""exit: by itself; timeout, flood: interrupted after its time limit or FLOOD_BYTES; memory: interrupted because
something in the container was killed; shell: the shell ended with it."""
ENDS: dict[int | None, CommandEnd] = {None: "timeout", KILLED: "memory"}
"""By the code of the script that waited for the command."""


@dataclass(frozen=True)
class ShellAnswer:
    """How a command in the shell ended."""

    output: str
    """Standard output and standard error in the order of their writing, with head and tail of what was too long."""
    code: int
    end: CommandEnd = "exit"
    lost: bool = False
    """The state of the shell is lost: the next command runs in a new shell."""


CONTAINER_ENDED = ShellAnswer(
    "The container kills every command: it has ended, or is over its memory limit.\n", KILLED, "shell", True
)


@dataclass(frozen=True)
class RunningShell:
    """A shell that runs in the container."""

    folder: str
    pid: str
    restored: bool
    """Whether it took over the state of the shell before."""
    output: str = "0"
    """Number of the file for the output of the next command."""


class Shell:
    """The shell of one trajectory. It starts with its first command; commands run one at a time."""

    def __init__(
        self, container: Container, *, user: str | None = None, output: int = 16_000, shells: Sequence[str] = SHELLS
    ) -> None:
        """`output`: bytes of a command's output that are shown, half of them from its end."""
        self.container, self.user, self.output, self.shells = container, user, output, shells
        self.running: RunningShell | None = None
        self.ended = ""
        """Folder of the shell that ended last, whose state the next one takes over."""
        self.count = 0
        self.lock = asyncio.Lock()

    async def run(self, command: str, timeout: float) -> ShellAnswer:
        """Run a command for at most `timeout` seconds. Raises InfraError."""
        async with self.lock:
            running = self.running or await self._start()
            if running is None:
                return CONTAINER_ENDED
            self.count += 1
            limits = (str(self.output - self.output // 2), str(self.output // 2))
            words = (running.folder, running.pid, str(self.count), running.output, *limits)
            done = await self._exec(CALL, (*words, str(FLOOD_BYTES), await self._short(command, running)), timeout)
            end = ENDS.get(done.code, "exit")
            if done.stderr.startswith("flood"):
                end = "flood"
            if end != "exit":
                done = await self._exec(INTERRUPT, (*words, f"{GRACE:g}", end), START_TIMEOUT)
            return await self._answer(done, end)

    async def restart(self) -> None:
        """End the shell with all that it started; the next command runs in a new one. Raises InfraError."""
        async with self.lock:
            running, self.running, self.ended = self.running, None, ""
            if running is not None:
                await self._exec(END, (running.folder, running.pid), START_TIMEOUT)

    async def _start(self) -> RunningShell | None:
        """None where it is killed at once."""
        words = (f".shell-{uuid4().hex[:12]}", self.ended, LOOP, PREPARE, *self.shells)
        done = await self._exec(START, words, START_TIMEOUT)
        answer = done.stdout.strip().split(" ", 3)
        if done.code == KILLED and not done.stdout:
            return None
        if answer[0] != "ready":
            raise InfraError(f"no shell started in container {self.container.name}: {_why(done)}")
        self.running, self.ended = RunningShell(answer[3], answer[1], answer[2] == "1"), ""
        return self.running

    async def _answer(self, done: Done, end: CommandEnd) -> ShellAnswer:
        if done.code == KILLED:
            self.running = None
            return CONTAINER_ENDED
        word, code, *rest = (*done.stderr.strip().rpartition("\n")[2].split(), "", "")
        if done.code != 0 or not code.isdigit() or self.running is None:
            raise InfraError(f"the shell in container {self.container.name} gave no answer: {_why(done)}")
        if word != "gone":
            self.running = replace(self.running, output=rest[0])
            return ShellAnswer(done.stdout, int(code), end)
        self.ended, self.running = self.running.folder, None
        started = await self._start()
        lost = started is None or not started.restored
        return ShellAnswer(done.stdout, int(code), "shell" if end == "exit" else end, lost)

    async def _short(self, command: str, running: RunningShell) -> str:
        """The command, or one that reads it from a file: the kernel limits the length of an argument."""
        content = command.replace("\0", "").encode(errors="replace")
        if len(content) <= ARGUMENT_BYTES:
            return content.decode()
        file = f"{running.folder}/long"
        await self._exec('cat >"$1"', (file,), START_TIMEOUT, content)
        return f". {file}"

    async def _exec(self, script: str, words: Sequence[str], timeout: float, stdin: bytes | None = None) -> Done:
        """Run a script as text, which the container gives to bash where it has one."""
        text = f"set -- {shlex.join(words)}\n{script}"
        return await self.container.exec(text, timeout=timeout, user=self.user, stdin=stdin)


def _why(done: Done) -> str:
    return last_line(done.output) or f"exit code {done.code}"
