"""What the processes of a run use, by /proc. Memory counts whichever way it was had: private, shared, swapped."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

_TICKS = os.sysconf("SC_CLK_TCK")
_KIB = 1024
# Shared memory that belongs to no file of the host.
_OWNERLESS = ("/dev/zero (deleted)", "/SYSV", "/memfd:", "[anon_shmem")


@dataclass(frozen=True)
class Usage:
    """Of all processes that are alive, together."""

    memory: int = 0
    """Bytes."""
    cpu: float = 0.0
    """Seconds, that of children they waited for included."""


def usage(pids: Iterable[int], limit: int) -> Usage:
    """Look at every process. Pages that several share count once where it would matter, near `limit` bytes."""
    fields = {pid: _status(pid) for pid in pids}
    private = sum(f.get("RssAnon", 0) + f.get("VmSwap", 0) for f in fields.values())
    shared = sum(f.get("RssShmem", 0) for f in fields.values())
    if private + shared > limit and len(fields) > 1:
        private, shared = _proportional(fields)
    if any(_unexplained(f) > limit for f in fields.values()):
        shared = max(shared, _shared_mappings(fields))
    return Usage(private + shared, sum(map(_cpu, fields)))


def folder_bytes(folder: str) -> int:
    """Bytes taken on the file system of `folder`."""
    about = os.statvfs(folder)
    return (about.f_blocks - about.f_bfree) * about.f_frsize


def folder_full(folder: str) -> bool:
    """Whether the file system of `folder` has no block or no inode left."""
    about = os.statvfs(folder)
    return about.f_bavail == 0 or (about.f_files > 0 and about.f_favail == 0)


def starved(pid: int) -> float:
    """Seconds that the process was ready to run and waited for a core; 0 where the kernel does not say."""
    try:
        return int(_read(pid, "schedstat").split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _read(pid: int, name: str) -> str:
    with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
        return file.read()


def _status(pid: int) -> dict[str, int]:
    """The kB fields, as bytes; none for a process that is gone."""
    try:
        lines = _read(pid, "status").splitlines()
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) * _KIB for line in lines if line.endswith(" kB")}


def _proportional(pids: Iterable[int]) -> tuple[int, int]:
    private = shared = 0
    for pid in pids:
        try:
            lines = _read(pid, "smaps_rollup").splitlines()[1:]
        except OSError:
            continue
        sizes = {line.split(":")[0]: int(line.split()[1]) * _KIB for line in lines}
        private += sizes.get("Pss_Anon", 0) + sizes.get("SwapPss", 0)
        shared += sizes.get("Pss_Shmem", 0)
    return private, shared


def _unexplained(fields: dict[str, int]) -> int:
    """Address space that is neither private memory nor code: files, reserves, or shared memory not touched here."""
    return fields.get("VmSize", 0) - sum(fields.get(name, 0) for name in ("VmData", "VmStk", "VmExe", "VmLib"))


def _shared_mappings(pids: Iterable[int]) -> int:
    """Sizes of shared memory mapped by anyone, each piece once: its pages need not be in any process's table."""
    pieces: dict[str, int] = {}
    for pid in pids:
        try:
            lines = _read(pid, "maps").splitlines()
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
        fields = _read(pid, "stat").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS
