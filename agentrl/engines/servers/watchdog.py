"""Runs a server, and ends it with all its children when the trainer is gone.

    python watchdog.py SCRATCH [COMMAND...]

Standard input is a pipe from the trainer; SCRATCH, if not empty, a folder to remove should the trainer die. Without a
COMMAND that is all there is to do. The server's temporary files, and shared memory that it forgets, go with it.

Invariant: nothing of the server outlives the trainer, however it ended. The pipe's other end closes with the trainer,
after SIGKILL too; a changed parent says the same where a fork of the trainer still holds that end. The server has a
process group of its own, so that Ctrl-C reaches the trainer alone, and dies by the kernel's hand should this process
be killed. Standard library only: it starts in milliseconds.
"""

import ctypes
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

STOP, GONE = b"s", b""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LEFT = re.compile(r"/dev/shm/(?:sglang_loads_|sem\.mp-|psm_)\S+")
"""Shared memory that SGLang makes and never removes, and that of Python's own which a killed process leaves."""


def main(scratch: str, command: list[str]) -> int:
    """Run until the server ends, the pipe closes, or the parent dies; gives the server's exit code."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # a server's orphans come to us, so that the sweep at the end finds them
    parent = os.getppid()
    leavings = Leavings()
    server = start(command, leavings.folder, libc) if command else None
    gone = False
    try:
        while server is None or server.poll() is None:
            word = _word()
            gone = word == GONE or os.getppid() != parent
            if gone or word == STOP:
                break
            if server is not None:
                leavings.look(server.pid)
        return 0 if server is None else server.poll() or 0
    finally:
        if server is not None:
            leavings.look(server.pid, now=True)
            stop(server)
        leavings.remove()
        if scratch and gone:  # else the trainer is there: it may need the folder for another server
            shutil.rmtree(scratch, ignore_errors=True)


def start(command: list[str], folder: str, libc: ctypes.CDLL) -> "subprocess.Popen[bytes]":
    """The server, in a process group of its own, dying with us; its temporary files go to `folder`."""
    kept = os.path.join(tempfile.gettempdir(), f"torchinductor_{os.getuid()}")  # what the next server need not compile
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        process_group=0,
        env={"TORCHINDUCTOR_CACHE_DIR": kept, **os.environ, "TMPDIR": folder},
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
    )


class Leavings:
    """The files that a killed server leaves: temporary files, and shared memory under names of its own."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="agentrl-server-")
        self._segments: set[str] = set()
        self._next = 0.0

    def look(self, group: int, *, now: bool = False) -> None:
        """Record, every few seconds or `now`, the shared memory of a group's processes."""
        if time.monotonic() < self._next and not now:
            return
        self._next = time.monotonic() + 5
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                self._segments.update(_forgotten(pid) if os.getpgid(int(pid)) == group else ())

    def remove(self) -> None:
        """Remove it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in self._segments:
            with suppress(OSError):
                os.unlink(path)


def _forgotten(pid: str) -> list[str]:
    """Shared memory of a process that nobody else will remove."""
    with open(f"/proc/{pid}/maps") as maps:
        return LEFT.findall(maps.read())


def _word() -> bytes | None:
    """Wait a moment for a word of the trainer."""
    readable, _, _ = select.select([0], [], [], 0.2)
    return os.read(0, 1) if readable else None


def stop(server: "subprocess.Popen[bytes]") -> None:
    """Kill all processes of the server at the same moment, and reap them.

    It has nothing to save. Asked to stop, SGLang waits for its requests and seconds more, and a server some of whose
    processes end before others reports a crash.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    with suppress(ChildProcessError):  # reap the orphans, too: where nobody else does, they stay as zombies
        while True:
            _kill_children()  # each time: the children of one that was killed come to us
            os.waitpid(-1, 0)


def _kill_children() -> None:
    for pid in _children():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _children() -> list[int]:
    """Processes that the server has orphaned."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
