"""Runs a server, and ends it with all its children when the trainer is gone.

    python watchdog.py [--apart] SCRATCH [COMMAND...]

Standard input is a pipe from the trainer. SCRATCH, if not empty, is a folder that is removed if the trainer dies;
without a COMMAND nothing else is done. The server's temporary files, and the shared memory that it leaves, are removed
at its end. With --apart the COMMAND is a program that is not trusted: it cannot read other processes, and only the
beginning and the end of its output are written.

Invariant: nothing of the server outlives the trainer, however it ended. The pipe closes with the trainer, after SIGKILL
too; a changed parent shows the same where a fork of the trainer still holds the pipe. The server has a separate process
group, so that Ctrl-C reaches the trainer alone, and the kernel kills it if this process is killed. Standard library
only: it starts in milliseconds.
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
KEPT_BYTES = 1 << 16
"""Bytes that are written of the beginning of an output, and of its end."""
SHARED_MEMORY = "/dev/shm"
LEFT_BEHIND = ("sglang_loads_", "sem.mp-", "psm_")
"""Beginnings of names of shared memory that SGLang never removes, and that Python leaves when it is killed."""
MAPPED = re.compile(rf"(\d+) +{SHARED_MEMORY}/")
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
            byte = _received()
            gone = byte == GONE or os.getppid() != parent
            if gone or byte == STOP:
                break
            if server is not None:
                leavings.record(server.pid)
        return 0 if server is None else server.poll() or 0
    finally:
        if server is not None:
            leavings.record(server.pid, now=True)
            stop(server)
        if apart:
            writer.join(5)
        leavings.remove()
        if scratch and gone:  # else the trainer is there: it may need the folder for another server
            shutil.rmtree(scratch, ignore_errors=True)


def keep_apart(libc: ctypes.CDLL) -> None:
    """Close the memory, environment and files of all other processes to this one and its children, and keep their
    signals from them. Landlock does it, in kernels that have it; its rules on files here deny nothing that is used."""
    _enter_landlock(libc)
    for capability in CAPABILITIES:
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def _enter_landlock(libc: ctypes.CDLL) -> None:
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
    room, left_out, tail = KEPT_BYTES, 0, b""
    while data := os.read(output, 1 << 16):
        os.write(1, data[:room])
        tail += data[room:]
        room -= len(data[:room])
        if len(tail) > 16 * KEPT_BYTES:
            left_out, tail = left_out + len(tail) - KEPT_BYTES, tail[-KEPT_BYTES:]
    if len(tail) > KEPT_BYTES or left_out:
        os.write(1, b"\n[... %d bytes left out ...]\n" % (left_out + max(0, len(tail) - KEPT_BYTES)))
    os.write(1, tail[-KEPT_BYTES:])


def start(command: list[str], folder: str, libc: ctypes.CDLL, output: int | None) -> "subprocess.Popen[bytes]":
    """Start the server in a new process group; it dies with this process. Its temporary files go to `folder`."""
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
    """The temporary files and the shared memory that a killed server leaves."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="agentrl-server-")
        self._segments: set[str] = set()
        self._next = 0.0

    def record(self, group: int, *, now: bool = False) -> None:
        """Note the shared memory of a group's processes: every few seconds, or `now`."""
        if time.monotonic() < self._next and not now:
            return
        self._next = time.monotonic() + 5
        mapped: set[int] = set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                mapped.update(_mapped(pid) if os.getpgid(int(pid)) == group else ())
        with suppress(OSError):
            entries = [entry for entry in os.scandir(SHARED_MEMORY) if entry.name.startswith(LEFT_BEHIND)]
            self._segments.update(entry.path for entry in entries if entry.inode() in mapped)

    def remove(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in self._segments:
            with suppress(OSError):
                os.unlink(path)


def _mapped(pid: str) -> list[int]:
    """Inodes of the shared memory of a process."""
    with open(f"/proc/{pid}/maps") as maps:
        return [int(inode) for inode in MAPPED.findall(maps.read())]


def _received() -> bytes | None:
    """Wait a moment for a byte of the trainer; b"": it is gone."""
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
    with suppress(ChildProcessError):  # reap the orphans, too, which may otherwise stay as zombies
        while True:
            _kill_children()  # each time: the children of one that was killed come to us
            os.waitpid(-1, 0)


def _kill_children() -> None:
    """Kill the processes that the server has orphaned."""
    with suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as file:
        for pid in file.read().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    apart = sys.argv[1] == "--apart"
    scratch, *command = sys.argv[1 + apart :]
    sys.exit(main(scratch, command, apart=apart))
