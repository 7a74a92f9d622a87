"""A zygote as the supervisor sees it: its process, its control socket, and the last lines of its stderr."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from agentrl_sandbox.isolation import WORK, Host, Tier

_CODE = Path(__file__).parent / "zygote"
_PRELOADED = (
    *("abc", "array", "bisect", "collections", "contextlib", "copy", "dataclasses", "datetime", "enum", "functools"),
    *("heapq", "io", "itertools", "json", "math", "operator", "os", "random", "re", "string", "struct", "sys"),
    *("threading", "time", "traceback", "types", "typing", "linecache"),
)
FLAVOURS: dict[str, tuple[str, ...]] = {"base": _PRELOADED, "numpy": (*_PRELOADED, "numpy", "numpy.random")}
"""Modules that the interpreter of a flavour imports before it is forked."""
_STDERR = 4096


@dataclass
class Run:
    """A job that waits for its zygote, or runs."""

    number: int
    flavour: str
    connection: int
    """File descriptor of the job supervisor's end of the pool's socket."""
    slot: int = -1
    pidfd: int = -1


@dataclass
class ZygoteProcess:
    """A started zygote."""

    flavour: str
    control: socket.socket
    launcher: "subprocess.Popen[bytes]"
    pidfd: int = -1
    """-1 until it is ready."""
    sent: dict[int, Run] = field(default_factory=dict)
    """Runs that it has received and not confirmed."""
    stderr: bytes = b""

    @property
    def errors(self) -> IO[bytes]:
        """The pipe of its stderr."""
        assert self.launcher.stderr is not None, "made with a pipe"
        return self.launcher.stderr

    @property
    def ready(self) -> bool:
        """Whether it can fork."""
        return self.pidfd >= 0

    def send(self, run: Run, handles: list[int]) -> None:
        """Have it fork a job supervisor. A zygote that died is noticed by its pidfd."""
        self.sent[run.number] = run
        text = json.dumps({"id": run.number, "slot": run.slot}).encode()
        with suppress(OSError):
            socket.send_fds(self.control, [text], handles)

    def read_stderr(self) -> bool:
        """Read a part of stderr; False at its end."""
        part = os.read(self.errors.fileno(), 1 << 16)
        self.stderr = (self.stderr + part)[-_STDERR:]
        return bool(part)

    def last_stderr_line(self) -> str:
        """The reason for its end, after reading the rest of stderr."""
        os.set_blocking(self.errors.fileno(), False)
        self.stderr += self.errors.read() or b""
        lines = self.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a message"

    def kill(self) -> None:
        """SIGKILL, and with it, under the namespace tier, to all its runs."""
        self.control.close()
        if self.ready:
            kill(self.pidfd)
        else:
            self.launcher.kill()

    def close(self) -> None:
        """Close its pipes."""
        for stream in (self.launcher.stdin, self.launcher.stdout, self.launcher.stderr):
            if stream is not None:
                stream.close()


def start(flavour: str, tier: Tier, host: Host, config: Mapping[str, Any]) -> ZygoteProcess:
    """Start the interpreter of a flavour. `config`: the supervisor's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    slot_folder = tier.first_slot_folder(host.folder)
    work = WORK if slot_folder is None else os.path.join(slot_folder, "box")
    control = {
        "tier": config["tier"],
        "source": config["source"],
        "preload": FLAVOURS[flavour],
        "host": asdict(host),
        "handle": theirs.fileno(),
    }
    launcher = subprocess.Popen(
        [config["python"], os.path.join(work, config["source"])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={
            **config["env"],
            "PYTHONPATH": str(_CODE),
            **({} if slot_folder is None else tier.variables(slot_folder)),
            "AGENTRL_SANDBOX_CONTROL": json.dumps(control),
        },
        cwd="/",
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    theirs.close()
    return ZygoteProcess(flavour, ours, launcher)


def kill(pidfd: int) -> None:
    """SIGKILL to a process that may have ended."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
