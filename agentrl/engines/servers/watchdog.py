"""Runs a server, and ends it with all its children when the trainer is gone.

    python watchdog.py [--apart] SCRATCH [COMMAND...]

Standard input is a pipe from the trainer; SCRATCH, if not empty, a folder to remove should the trainer die. Without a
COMMAND that is all there is to do. The server's temporary files, and shared memory that it forgets, go with it. With
--apart the COMMAND is a program that is not trusted: it does not see into other processes, and of its output no more
than both ends are written.

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
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress

STOP, GONE = b"s", b""
PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
LANDLOCK_CREATE, LANDLOCK_RESTRICT = 444, 446
MAKE_BLOCK_DEVICES, SIGNALS = 1 << 11, 2
CAPABILITIES = (19, 21, 38)
"""SYS_PTRACE, SYS_ADMIN, PERFMON: with these root sees into all processes."""
END = 1 << 16
"""Bytes that are written of the beginning of an output, and of its end."""
SHARED = "/dev/shm"
LEFT = ("sglang_loads_", "sem.mp-", "psm_")
"""Shared memory that SGLang makes and never removes, and that of Python's own which a killed process leaves."""
MAPPED = re.compile(rf"(\d+) +{SHARED}/")
"""A mapped file's inode: the C library makes a semaphore under another name, which the maker's map still shows."""


def main(scratch: str, command: list[str], *, apart: bool = False) -> int:
    """Run until the server ends, the pipe closes, or the parent dies; gives the server's exit code."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # a server's orphans come to us, so that the sweep at the end finds them
    parent = os.getppid()
    leavings = Leavings()
    if apart:
        keep_apart(libc)
    reading, writing = os.pipe() if apart else (-1, None)
    server = start(command, leavings.folder, libc, writing) if command else None
    writer = threading.Thread(target=write_ends, args=[reading], daemon=True)
    if writing is not None:
        os.close(writing)
        writer.start()
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
        if apart:
            writer.join(5)
        leavings.remove()
        if scratch and gone:  # else the trainer is there: it may need the folder for another server
            shutil.rmtree(scratch, ignore_errors=True)


def keep_apart(libc: ctypes.CDLL) -> None:
    """Close the memory, environment and files of all other processes to this one and its children, and keep their
    signals from them. Landlock does it, in kernels that have it; its rules on files here deny nothing that is used."""
    _close_in(libc)
    for capability in CAPABILITIES:
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def _close_in(libc: ctypes.CDLL) -> None:
    version = libc.syscall(LANDLOCK_CREATE, None, 0, 1)
    # Kernels before 6.12 know no rule on signals: they get one on files, whose price is that nothing can be mounted.
    rules = struct.pack("=3Q", 0, 0, SIGNALS) if version >= 6 else struct.pack("=3Q", MAKE_BLOCK_DEVICES, 0, 0)
    domain = libc.syscall(LANDLOCK_CREATE, rules, len(rules), 0) if version > 0 else -1
    if domain < 0:
        return
    if libc.syscall(LANDLOCK_RESTRICT, domain, 0):  # without the right to it: a promise to gain no rights does
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.syscall(LANDLOCK_RESTRICT, domain, 0)
    os.close(domain)


def write_ends(output: int) -> None:
    """Write both ends of an output to our own, which is a file: the beginning at once."""
    room, left_out, tail = END, 0, b""
    while data := os.read(output, 1 << 16):
        os.write(1, data[:room])
        tail += data[room:]
        room -= len(data[:room])
        if len(tail) > 16 * END:
            left_out, tail = left_out + len(tail) - END, tail[-END:]
    if len(tail) > END or left_out:
        os.write(1, b"\n[... %d bytes left out ...]\n" % (left_out + max(0, len(tail) - END)))
    os.write(1, tail[-END:])


def start(command: list[str], folder: str, libc: ctypes.CDLL, output: int | None) -> "subprocess.Popen[bytes]":
    """The server, in a process group of its own, dying with us; its temporary files go to `folder`."""
    kept = os.path.join(tempfile.gettempdir(), f"torchinductor_{os.getuid()}")  # what the next server need not compile
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
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
        mapped: set[int] = set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                mapped.update(_mapped(pid) if os.getpgid(int(pid)) == group else ())
        with suppress(OSError):
            self._segments.update(e.path for e in os.scandir(SHARED) if e.name.startswith(LEFT) and e.inode() in mapped)

    def remove(self) -> None:
        """Remove it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in self._segments:
            with suppress(OSError):
                os.unlink(path)


def _mapped(pid: str) -> list[int]:
    """Inodes of the shared memory of a process."""
    with open(f"/proc/{pid}/maps") as maps:
        return [int(inode) for inode in MAPPED.findall(maps.read())]


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
    apart = sys.argv[1] == "--apart"
    scratch, *command = sys.argv[1 + apart :]
    sys.exit(main(scratch, command, apart=apart))
