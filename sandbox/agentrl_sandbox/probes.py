"""Canaries: a tier counts as working only after a program in it has tried what it must not be able to do, and failed.

Invariant: versions and settings never decide; they only help to word the advice. The baits lie outside: a secret file,
an open folder, listening sockets, a process with a secret in its environment. A canary's report counts only against it;
its effects are looked up at the baits.
"""

import asyncio
import json
import os
import secrets
import socket
import subprocess
import tempfile
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from agentrl_sandbox.fixes import fix_for
from agentrl_sandbox.isolation import Probe
from agentrl_sandbox.job import CommandResult, Job, Limits, Result

CANARY = textwrap.dedent(
    """\
    import ctypes, json, os, socket, sys, tempfile

    bait, leaks = json.load(sys.stdin), []

    def must_fail(what, act, *arguments):
        try:
            act(*arguments)
        except Exception:
            return
        leaks.append(what)

    def connect(family, address):
        with socket.socket(family) as client:
            client.settimeout(1)
            client.connect(tuple(address) if isinstance(address, list) else address)

    def unshare(flags):
        if ctypes.CDLL(None).unshare(flags):
            raise OSError

    def environment(pid):
        with open(f"/proc/{pid}/environ", "rb") as file:
            if bait["marker"].encode() not in file.read():
                raise OSError

    def processes():
        try:
            return [int(name) for name in os.listdir("/proc") if name.isdigit()]
        except OSError:
            return []

    must_fail("reads files of the host", open, bait["secret"])
    must_fail("writes to folders of the host", open, bait["folder"] + "/written", "w")
    must_fail("connects to the host's ports", connect, socket.AF_INET, bait["port"])
    must_fail("connects to the host's abstract sockets", connect, socket.AF_UNIX, bait["abstract"])
    must_fail("connects to sockets in the host's folders", connect, socket.AF_UNIX, bait["folder"] + "/socket")
    must_fail("makes namespaces of its own", unshare, 0x10000000)
    for pid in {bait["decoy"], *processes()}:
        must_fail("reads the environment of other processes", environment, pid)
    own = {os.getpid(), os.getppid()}
    if bait["decoy"] not in own:
        must_fail("signals other processes", os.kill, bait["decoy"], 9)
    left = os.path.join(tempfile.gettempdir(), "left")
    must_fail("sees files of earlier runs", open, left)
    open(left, "w").close()
    print(json.dumps(leaks), flush=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", bait["linger"]])
        os._exit(0)
    """
)
_LIMITS = Limits(wall=20.0, memory_mb=512)
_JOBS = (2, 1)
"""Runs of each job: each run looks for traces of the one before, of the same job or of the previous one."""
Run = Callable[[Job], Awaitable[Result]]


async def examine(tier: str, run: Run) -> Probe:
    """Run canaries in `tier`, by the `run` of a pool that was started with it. Raises SandboxError."""
    with Baits() as baits:
        description = json.dumps(baits.description).encode()
        jobs = [Job("python", CANARY, stdins=[description] * count, run_limits=_LIMITS) for count in _JOBS]
        commands = [command for job in jobs for command in (await run(job)).runs]
        loop = asyncio.get_running_loop()
        leaks = await loop.run_in_executor(None, baits.taken)
    for command in commands:
        leaks += _reported(command)
    if len(commands) != sum(_JOBS):
        leaks.append("does not run canaries")
    return Probe(tier, True) if not leaks else refused(tier, f"a canary {', '.join(dict.fromkeys(leaks))}")


def refused(tier: str, why: str) -> Probe:
    """The probe of a tier that does not work, with advice."""
    return Probe(tier, False, why, fix_for(tier, why))


def _reported(command: CommandResult) -> list[str]:
    try:
        leaks: list[str] = json.loads(command.stdout)
    except ValueError:
        words = command.stderr.decode(errors="replace").strip().splitlines() or [command.status]
        return [f"does not run: {words[-1]}"]
    return leaks


class Baits:
    """Targets outside the sandbox that canaries try to reach."""

    def __enter__(self) -> "Baits":
        marker, self.linger = secrets.token_hex(8), f"86400.{secrets.randbelow(10**12):012}"
        self.space = tempfile.TemporaryDirectory(prefix="agentrl-bait-")
        folder = Path(self.space.name)
        (folder / "secret").write_text(marker)
        self.abstract = f"\0agentrl-bait-{marker}"
        self.listeners = [_listen(socket.AF_INET, ("127.0.0.1", 0)), _listen(socket.AF_UNIX, self.abstract)]
        self.listeners.append(_listen(socket.AF_UNIX, str(folder / "socket")))
        for path in (folder, folder / "socket"):
            path.chmod(0o777)
        # It sleeps until its stdin ends.
        self.decoy = subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env={"PATH": os.defpath, "BAIT": marker}
        )
        self.description: dict[str, Any] = {
            "marker": marker,
            "secret": str(folder / "secret"),
            "folder": str(folder),
            "linger": self.linger,
            "port": self.listeners[0].getsockname(),
            "abstract": self.abstract,
            "decoy": self.decoy.pid,
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.decoy.communicate()
        for listener in self.listeners:
            listener.close()
        self.space.cleanup()

    def taken(self) -> list[str]:
        """Traces of canaries at the baits, as sentences."""
        found = []
        if self.decoy.poll() is not None:
            found.append("kills other processes")
        if any(map(_was_called, self.listeners)):
            found.append("connects to the host's sockets")
        if os.path.exists(f"{self.space.name}/written"):
            found.append("writes to folders of the host")
        if any(_is(pid, self.linger) for pid in os.listdir("/proc") if pid.isdigit()):
            found.append("leaves processes behind")
        return found


def _listen(family: int, address: Any) -> socket.socket:
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen()
    listener.setblocking(False)
    return listener


def _was_called(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def _is(pid: str, argument: str) -> bool:
    try:
        return argument.encode() in Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return False
