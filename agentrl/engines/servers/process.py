"""A server in its own process, with its output in a log file, and a folder that ends with this process."""

import asyncio
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.inside import inside
from agentrl.core.outputs import tail
from agentrl.engines.servers import watchdog

# Some servers say before each line which of their processes wrote it.
ERROR = re.compile(r"(?:\(\w+ pid=\d+\) )?([\w.]*(?:Error|Exception|error:|Killed)\b(?!.*root cause above).*)")
TAKEN = "address already in use"
END_SECONDS = 30.0
"""Seconds for the kernel to end a server's processes, which may have much memory."""


class StartFailed(UserError):
    """The server did not come up; `details` are the last lines that it wrote."""

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = tuple(details)


def watched(scratch: Path | None, command: Sequence[str] = (), **options: Any) -> subprocess.Popen[bytes]:
    """A command under a watchdog, which ends it with this process and then removes the folder `scratch`."""
    options.setdefault("stderr", subprocess.STDOUT if "stdout" in options else None)
    return subprocess.Popen(
        [sys.executable, "-S", "-E", watchdog.__file__, str(scratch or ""), *command],
        stdin=subprocess.PIPE,  # its end tells the watchdog that we are gone
        start_new_session=True,  # Ctrl-C is for us; we then stop the command
        **options,
    )


class ServerProcess:
    """Starts, watches and stops one server. Invariant: the server does not outlive this process."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, *, scratch: Path | None = None
    ) -> None:
        """`scratch`: a folder that is removed with the server when this process is killed."""
        self.command, self.environment, self.log = list(command), dict(environment), log
        self.scratch = scratch
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start it; returns at once. An earlier server of this object must have ended."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with inside(self.log, self.log.parent).open("ab") as log:
            log.write(f"\n$ {' '.join(self.command)}\n".encode())
            log.flush()
            self._process = watched(self.scratch, self.command, stdout=log, env=os.environ | self.environment)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def stuck(self) -> bool:
        """Whether another process has its port: SGLang then logs it, and neither serves nor ends."""
        return any(TAKEN in line.lower() for line in self.tail(3))

    async def stop(self) -> None:
        """End the server and its children; safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        try:
            process.stdin.write(watchdog.STOP)
            process.stdin.close()
        except BrokenPipeError:  # it has ended by itself
            pass
        await asyncio.to_thread(process.wait, END_SECONDS)

    def tail(self, lines: int = 20) -> list[str]:
        """The last lines of its log since it was last started."""
        if not self.log.exists():
            return []
        own = tail(self.log, 64_000).rpartition("\n$ ")[2].splitlines()[1:]
        return [line for line in own if line.strip()][-lines:]

    def failure(self, name: str, hints: Mapping[str, str]) -> StartFailed:
        """The error with the reason of a failed start. `hints`: text in the log -> how to fix it."""
        lines = [line for line in self.tail(400) if not line.lstrip().startswith("[--")]  # pages of usage
        text = "\n".join(lines).lower()
        known = {**hints, TAKEN: "another program took its port: start again"}
        hint = next((hint for sign, hint in known.items() if sign.lower() in text), "")
        reasons = [found[1] for line in lines if (found := ERROR.match(line.strip()))]
        reason = reasons[-1][:300] if reasons else (lines[-1][:300] if lines else "it wrote nothing")
        end = f"; {hint}" if hint else ""
        return StartFailed(f"the {name} server did not start: {reason}{end}; its log is {self.log}", lines[-20:])


class Scratch:
    """A temporary folder for weights. Invariant: it does not outlive this process, SIGKILL included: a watchdog process
    removes it."""

    def __init__(self, parent: Path | str) -> None:
        """Makes a new folder below `parent`."""
        self.path = Path(tempfile.mkdtemp(prefix="agentrl-", dir=parent))
        self._watchdog = watched(self.path)

    def remove(self) -> None:
        """Remove it now; safe to call twice."""
        self._watchdog.communicate()


def free_port() -> int:
    """A TCP port that nothing listens on.

    It is below the range that systems assign by themselves, so that no other process gets it before the server binds
    it, and low enough for servers that add thousands to it for further ports.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
