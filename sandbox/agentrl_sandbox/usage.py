"""The CPU time and the memory of a run's processes, from /proc. Private, shared and swapped memory count.

Texts that a program chooses, such as names of processes and files, are read into memory that is returned to the kernel:
the next run may be a fork of this process.
"""

import contextlib
import mmap
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence

from agentrl_sandbox.kernel.confine import NICE
from agentrl_sandbox.memory import Stream, take

_TICKS = os.sysconf("SC_CLK_TCK")
_KIB = 1024
# Shared memory that belongs to no file of the host.
_OWNERLESS = (b"/dev/zero (deleted)", b"/SYSV", b"/memfd:", b"[anon_shmem")
_QUEUES = {stat.S_IFSOCK: 208 * _KIB, stat.S_IFIFO: 64 * _KIB}
"""Bytes that one can hold: the kernel's default, which a run cannot change."""
_FREE, _FREE_SLOTS = 64, 128
"""Sockets, and pipes, that do not count; and descriptors of all processes together that need no count."""
_ROOM, _ROOM_FOR_LINES = 1 << 16, 1 << 20
_NICE, _POLICY, _ORDINARY = 16, 38, 0
"""Positions in /proc/PID/stat, after the name; SCHED_OTHER."""


def cpu(pids: Iterable[int]) -> float:
    """CPU seconds of these processes and of the children that they waited for."""
    return sum(map(_cpu, pids))


def memory(pids: Sequence[int], limit: int, until: float) -> int:
    """Bytes of memory of these processes together. Near `limit`, shared pages count once.

    A program can make the exact answer take seconds. After `until` (time.monotonic) the result is a lower bound.
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
    """Bytes used on the file system of `folder`."""
    about = os.statvfs(folder)
    return (about.f_blocks - about.f_bfree) * about.f_frsize


def folder_full(folder: str) -> bool:
    """Whether the file system of `folder` has no block or no inode left."""
    about = os.statvfs(folder)
    return about.f_bavail == 0 or (about.f_files > 0 and about.f_favail == 0)


def scheduled(pid: int) -> tuple[float, float]:
    """Seconds that a process's first thread ran, and that it waited for a core; zeros if the kernel does not say.

    Waiting does not count for a process that lowered its own priority.
    """
    try:
        ran, waited = (int(word) / 1e9 for word in _read(pid, "schedstat").kept.tobytes().split()[:2])
        fields = _stat(pid)
        modest = int(fields[_NICE]) > NICE or int(fields[_POLICY]) != _ORDINARY
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0
    return ran, 0.0 if modest else waited


def _read(pid: int, name: str) -> Stream:
    """The content of a short file of /proc."""
    stream = Stream(_ROOM)
    handle = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        while stream.read(handle):
            pass
    finally:
        os.close(handle)
    return stream


def _lines(pid: int, name: str) -> list[str]:
    """Its lines except the first one, split at newlines only."""
    return _read(pid, name).after_first(b"\n").decode(errors="replace").split("\n")


def _status(pid: int) -> dict[str, int]:
    """The kB fields, as bytes, and FDSize; empty for a process that ended."""
    try:
        lines = _lines(pid, "status")
    except OSError:
        return {}
    return {**_sizes(lines), "FDSize": _number(lines, "FDSize")}


def _sizes(lines: Iterable[str]) -> dict[str, int]:
    """{name: bytes} of the lines "Name: 12 kB"."""
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
            sizes = _sizes(_lines(pid, "smaps_rollup"))
        except OSError:
            continue
        private += sizes.get("Pss_Anon", 0) + sizes.get("SwapPss", 0)
        shared += sizes.get("Pss_Shmem", 0)
    return private, shared


def _queues(fields: dict[int, dict[str, int]]) -> int:
    """Bytes that the run's sockets and pipes can hold: the kernel does not report what they do hold."""
    if sum(f.get("FDSize", 0) for f in fields.values()) <= _FREE_SLOTS:
        return 0
    kinds = [kind for kind, _, _ in {opened for pid in fields for opened in _opened(pid)}]
    return sum(max(0, kinds.count(kind) - _FREE) * size for kind, size in _QUEUES.items())


def _opened(pid: int) -> list[tuple[int, int, int]]:
    """(kind, device, inode) behind each descriptor of a process."""
    found = []
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                about = os.stat(f"/proc/{pid}/fd/{name}")
                found.append((stat.S_IFMT(about.st_mode), about.st_dev, about.st_ino))
    except OSError:
        pass  # it ended meanwhile
    return found


def _unexplained(fields: dict[str, int]) -> int:
    """Address space that is neither private memory nor code: files, reserves, or shared memory not touched here."""
    return fields.get("VmSize", 0) - sum(fields.get(name, 0) for name in ("VmData", "VmStk", "VmExe", "VmLib"))


def _shared_mappings(pids: Iterable[int], until: float) -> int:
    """Bytes of the shared memory that these processes map, each segment once: its pages may be in no page table."""
    pieces: dict[bytes, int] = {}
    for pid in pids:
        if time.monotonic() >= until:
            break
        with contextlib.suppress(OSError):
            for inode, size in _ownerless(pid):
                pieces[inode] = max(pieces.get(inode, 0), size)
    return sum(pieces.values())


def _ownerless(pid: int) -> Iterator[tuple[bytes, int]]:
    """(inode, bytes up to its end) of each mapping of shared memory."""
    room = take(_ROOM_FOR_LINES)
    whole = room.obj
    assert isinstance(whole, mmap.mmap), "from take"
    handle = os.open(f"/proc/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC)
    rest = 0
    try:
        while count := os.readv(handle, [room[rest:]]):
            end = rest + count
            whole_lines = whole.rfind(b"\n", 0, end) + 1
            yield from _mappings(whole, whole_lines)
            rest = end - whole_lines
            whole.move(0, whole_lines, rest)
    finally:
        os.close(handle)


def _mappings(lines: mmap.mmap, end: int) -> Iterator[tuple[bytes, int]]:
    """Mappings in the lines before `end`."""
    line = 0
    while (after := lines.find(b"\n", line, end) + 1) > 0:
        if found := _mapping(lines, line, after):
            yield found
        line = after


def _mapping(whole: mmap.mmap, line: int, end: int) -> tuple[bytes, int] | None:
    """Parses a line START-END PERMISSIONS OFFSET DEVICE INODE NAME. The name is compared in place, never copied."""
    flags = whole.find(b" ", line, end) + 1
    if whole[flags + 3 : flags + 4] != b"s":
        return None
    after = flags
    for _ in range(4):
        after = whole.find(b" ", after, end) + 1
    name = min((at for mark in (b"/", b"[") if (at := whole.find(mark, after, end)) >= 0), default=end)
    if not any(whole.find(kind, name, name + len(kind)) == name for kind in _OWNERLESS):
        return None
    span, _, offset, _, inode = whole[line:after].split()
    first, last = (int(bound, 16) for bound in span.split(b"-"))
    return inode, last - first + int(offset, 16)


def _cpu(pid: int) -> float:
    try:
        return sum(map(int, _stat(pid)[11:15])) / _TICKS
    except (OSError, ValueError):
        return 0.0


def _stat(pid: int) -> list[bytes]:
    """Fields after the name, which a program chooses."""
    return _read(pid, "stat").after_last(b")").split()
