"""What the processes of a run use, by /proc. Memory counts whichever way it was had: private, shared, swapped."""

import contextlib
import os
import time
from collections.abc import Iterable, Sequence

from agentrl.sandbox.kernel.confine import NICE

_TICKS = os.sysconf("SC_CLK_TCK")
_KIB = 1024
# Shared memory that belongs to no file of the host.
_OWNERLESS = ("/dev/zero (deleted)", "/SYSV", "/memfd:", "[anon_shmem")
_QUEUES = {"socket": 208 * _KIB, "pipe": 64 * _KIB}
"""Bytes that one may hold: the kernel's default, which a run cannot change."""
_FREE, _FREE_SLOTS = 64, 128
"""Of each so many count for nothing; and room for descriptors, all processes together, that is not worth a look."""
_NICE, _POLICY, _ORDINARY = 16, 38, 0
"""Positions in /proc/PID/stat, after the name; SCHED_OTHER."""


def cpu(pids: Iterable[int]) -> float:
    """Seconds of CPU time of all these, that of children they waited for included."""
    return sum(map(_cpu, pids))


def memory(pids: Sequence[int], limit: int, until: float) -> int:
    """Bytes of memory of all these together. Pages that several share count once where it would matter, near `limit`.

    Programs can make the exact answer cost seconds. From `until` (time.monotonic) on it is a lower bound.
    """
    fields = {pid: _status(pid) for pid in pids}
    private = sum(f.get("RssAnon", 0) + f.get("VmSwap", 0) for f in fields.values())
    shared = sum(f.get("RssShmem", 0) for f in fields.values())
    queues = _queues(fields)
    if private + shared + queues > limit and len(fields) > 1:
        private, shared = _proportional(fields, until)
    if sum(map(_unexplained, fields.values())) > limit:
        shared = max(shared, _shared_mappings(fields, until))
    return private + shared + queues


def folder_bytes(folder: str) -> int:
    """Bytes taken on the file system of `folder`."""
    about = os.statvfs(folder)
    return (about.f_blocks - about.f_bfree) * about.f_frsize


def folder_full(folder: str) -> bool:
    """Whether the file system of `folder` has no block or no inode left."""
    about = os.statvfs(folder)
    return about.f_bavail == 0 or (about.f_files > 0 and about.f_favail == 0)


def scheduled(pid: int) -> tuple[float, float]:
    """Seconds that a process's first thread ran, and that it waited for a core; zeros where the kernel does not say.

    A process that asked to be served after others has waited for nothing.
    """
    try:
        ran, waited = (int(word) / 1e9 for word in _read(pid, "schedstat").split()[:2])
        fields = _stat(pid)
        modest = int(fields[_NICE]) > NICE or int(fields[_POLICY]) != _ORDINARY
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0
    return ran, 0.0 if modest else waited


def _read(pid: int, name: str) -> str:
    """Lines end with a newline only: a name may hold all else that str.splitlines takes for an end."""
    with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
        return file.read()


def _status(pid: int) -> dict[str, int]:
    """The kB fields, as bytes, and FDSize; none for a process that is gone."""
    try:
        lines = _read(pid, "status").split("\n")
    except OSError:
        return {}
    return {**_sizes(lines), "FDSize": _number(lines, "FDSize")}


def _sizes(lines: Iterable[str]) -> dict[str, int]:
    """Lines "Name: 12 kB" as bytes. Others are passed over: a program writes what it likes after "Name:"."""
    words = (line.split() for line in lines if line.endswith(" kB"))
    return {one[0][:-1]: int(one[1]) * _KIB for one in words if len(one) == 3 and one[1].isdecimal()}


def _number(lines: Iterable[str], name: str) -> int:
    values = (line.split()[1] for line in lines if line.startswith(name + ":"))
    return int(next(values, "0"))


def _proportional(pids: Iterable[int], until: float) -> tuple[int, int]:
    private = shared = 0
    for pid in pids:
        if time.monotonic() >= until:
            break
        try:
            sizes = _sizes(_read(pid, "smaps_rollup").split("\n")[1:])
        except OSError:
            continue
        private += sizes.get("Pss_Anon", 0) + sizes.get("SwapPss", 0)
        shared += sizes.get("Pss_Shmem", 0)
    return private, shared


def _queues(fields: dict[int, dict[str, int]]) -> int:
    """Bytes that the run's sockets and pipes may hold: what they do hold the kernel tells nobody."""
    if sum(f.get("FDSize", 0) for f in fields.values()) <= _FREE_SLOTS:
        return 0
    kinds = [link.partition(":")[0] for link in {link for pid in fields for link in _links(pid)}]
    return sum(max(0, kinds.count(kind) - _FREE) * size for kind, size in _QUEUES.items())


def _links(pid: int) -> list[str]:
    """What the descriptors of a process stand for."""
    found = []
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    except OSError:
        pass  # it ended meanwhile
    return found


def _unexplained(fields: dict[str, int]) -> int:
    """Address space that is neither private memory nor code: files, reserves, or shared memory not touched here."""
    return fields.get("VmSize", 0) - sum(fields.get(name, 0) for name in ("VmData", "VmStk", "VmExe", "VmLib"))


def _shared_mappings(pids: Iterable[int], until: float) -> int:
    """Sizes of shared memory mapped by anyone, each piece once: its pages need not be in any process's table."""
    pieces: dict[str, int] = {}
    for pid in pids:
        if time.monotonic() >= until:
            break
        try:
            lines = _read(pid, "maps").split("\n")
        except OSError:
            continue
        for line in lines:
            parts = line.split(maxsplit=5)
            if len(parts) == 6 and "s" in parts[1] and parts[5].startswith(_OWNERLESS):
                start, end = (int(bound, 16) for bound in parts[0].split("-"))
                pieces[parts[4]] = max(pieces.get(parts[4], 0), end - start + int(parts[2], 16))
    return sum(pieces.values())


def _cpu(pid: int) -> float:
    try:
        return sum(map(int, _stat(pid)[11:15])) / _TICKS
    except (OSError, ValueError):
        return 0.0


def _stat(pid: int) -> list[str]:
    """What follows the name, which a program chooses."""
    return _read(pid, "stat").rpartition(")")[2].split()
