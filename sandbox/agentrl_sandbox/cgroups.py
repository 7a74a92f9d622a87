"""Control groups: the kernel's own count of a run's memory, with that of sockets, pipes and the kernel itself.

If the supervisor may create groups (version 2 or 1), each slot has one. The slot's job supervisor enters it once, with
all processes that it starts. Entering costs some 10 ms in which nothing on the host forks, so a job supervisor that
does a single job has no group. The group has no limit, because the kernel could then kill the job supervisor, which is
in the group, too: the job supervisor polls the count, as it polls everything else.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TIERS = ("namespace",)
"""Tiers whose job supervisors do several jobs."""
_NAME = "agentrl-sandbox-"
_TRIES, _PAUSE = 50, 0.02
_OLD = 60e9
"""Nanoseconds: a younger group may not be locked yet."""


@dataclass(frozen=True)
class Kind:
    """The files of a version of control groups."""

    version: int
    counters: tuple[str, ...]
    """Their sum is the memory of the group. Files that this kernel lacks are left out."""


ONE = Kind(1, ("memory.memsw.usage_in_bytes", "memory.kmem.tcp.usage_in_bytes"))
TWO = Kind(2, ("memory.current", "memory.swap.current"))
_WITHOUT_SWAP = {"memory.memsw.usage_in_bytes": "memory.usage_in_bytes"}


class Cgroups:
    """In the supervisor: creates and removes the groups."""

    def __init__(self, tier: str) -> None:
        """`why` says why there are none; empty if there are some."""
        self.home: Path | None = None
        self.kind, self.lock = ONE, -1
        self.why = f"runs of the tier {tier} enter no control group"
        if tier in _TIERS:
            self.why = self._create()

    def _create(self) -> str:
        why = "no control group counts memory on this host"
        for self.kind, parent in candidates():
            try:
                self.home, self.lock = _home(parent, self.kind)
            except OSError as error:
                why = f"no control group can be used in {parent} ({error.strerror})"
            else:
                return ""
        return why

    def open(self, slot: int) -> list[int]:
        """Descriptors for the slot's Cgroup; empty if there are no groups."""
        try:
            return [] if self.home is None else self._open(self.home / str(slot))
        except OSError:
            return []  # another process removed the group

    def _open(self, group: Path) -> list[int]:
        group.mkdir(exist_ok=True)
        files = [group / name for name in ("memory.stat", *_counters(group, self.kind))]
        flags = os.O_RDONLY | os.O_CLOEXEC
        return [os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC), *(os.open(file, flags) for file in files)]

    def close(self) -> None:
        """Remove all groups; they must be empty."""
        if self.home is not None:
            _remove(self.home)
            os.close(self.lock)
            self.home = None


def candidates(mountinfo: str = "/proc/self/mountinfo", own: str = "/proc/self/cgroup") -> Iterator[tuple[Kind, Path]]:
    """Where groups might be created, best first: below this process's own group.

    In version 2 a group with processes cannot have counting groups below it: then beside it, unless that evades a
    limit.
    """
    paths = {names: path for _, names, path in (line.split(":", 2) for line in _lines(own))}
    for line in _lines(mountinfo):
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        options = after.split()[-1].split(",")
        if after.startswith("cgroup2 ") and "" in paths:
            folder = _below(Path(point), root, paths[""])
            if "memory" not in (_read(folder / "cgroup.controllers") or "").split():
                continue  # only version 1 can count it
            yield TWO, folder
            if folder != Path(point) and _read(folder / "memory.max") == "max":
                yield TWO, folder.parent
        elif after.startswith("cgroup ") and "memory" in options:
            path = next((path for names, path in paths.items() if "memory" in names.split(",")), "/")
            yield ONE, _below(Path(point), root, path)


def _below(point: Path, root: str, path: str) -> Path:
    inside = os.path.relpath(path, root)
    return point if inside.startswith("..") else point / inside


def _home(parent: Path, kind: Kind) -> tuple[Path, int]:
    """A new group for the slots' groups, and the lock that marks it as in use. Raises OSError."""
    _clean(parent)
    home = parent / f"{_NAME}{os.getpid()}-{time.monotonic_ns()}"
    if kind is TWO:
        _enable(parent)
    home.mkdir()
    lock = os.open(home, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if kind is TWO:
            _enable(home)
        trial = home / "trial"
        trial.mkdir()
        _counters(trial, kind)
        _try(trial)
    except OSError:
        _remove(home)
        os.close(lock)
        raise
    return home, lock


def _enable(group: Path) -> None:
    if "memory" not in (_read(group / "cgroup.subtree_control") or "").split():
        (group / "cgroup.subtree_control").write_text("+memory")


def _counters(group: Path, kind: Kind) -> list[str]:
    """The counters that exist; the first one, with or without swap, is required. Raises OSError."""
    found = [name for name in kind.counters if (group / name).exists()]
    if kind.counters[0] not in found:
        found.insert(0, _WITHOUT_SWAP.get(kind.counters[0], kind.counters[0]))
        os.stat(group / found[0])
    if "memory.kmem.tcp.usage_in_bytes" in found:  # counted only if it has a limit
        with suppress(OSError):
            (group / "memory.kmem.tcp.limit_in_bytes").write_text(str(1 << 40))
    return found


def _try(group: Path) -> None:
    """Have a process enter. Raises OSError if it cannot."""
    procs = os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.write(procs, b"0")
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 1)
    os.close(procs)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


def _clean(parent: Path) -> None:
    """Remove the groups of supervisors that were killed."""
    for home in parent.glob(f"{_NAME}*-*"):
        if time.monotonic_ns() - int(home.name.rpartition("-")[2]) < _OLD:
            continue
        with suppress(OSError):
            lock = os.open(home, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(home)
            finally:
                os.close(lock)


def _remove(home: Path) -> None:
    """Remove a group and those in it. The kernel needs a moment after the last process."""
    for group in (*(path for path in home.iterdir() if path.is_dir()), home):
        for _ in range(_TRIES):
            try:
                group.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(_PAUSE)


def _lines(path: str) -> list[str]:
    return (_read(Path(path)) or "").splitlines()


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
