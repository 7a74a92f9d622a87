"""Control groups: the kernel's own count of a run's memory, that of sockets, pipes and the kernel for it included.

Where the supervisor may make groups there is one for each slot, of version 2 or 1. The slot's warden enters it, once,
and with it all that it starts: entering costs some 10 ms, in which nothing on the host forks, so a warden that does
one job only has none. The warden being in there, too, the group has no limit of its own, for the kernel could end the
wrong process: the warden looks at the count as at all the rest.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_GROUPED = ("namespace",)
"""Tiers whose wardens do several jobs each."""
_NAME = "agentrl-sandbox-"
_TRIES, _PAUSE = 50, 0.02
_OLD = 60e9
"""Nanoseconds: a younger one may be about to be locked."""


@dataclass(frozen=True)
class Kind:
    """The files of a version."""

    version: int
    counters: tuple[str, ...]
    """Their sum is what the group has; those that this kernel does not keep are left out."""


ONE = Kind(1, ("memory.memsw.usage_in_bytes", "memory.kmem.tcp.usage_in_bytes"))
TWO = Kind(2, ("memory.current", "memory.swap.current"))
_WITHOUT_SWAP = {"memory.memsw.usage_in_bytes": "memory.usage_in_bytes"}


class Groups:
    """In the supervisor: makes groups, and removes them."""

    def __init__(self, tier: str) -> None:
        """`why` says what stands against it, where there are none."""
        self.home: Path | None = None
        self.kind, self.lock = ONE, -1
        self.why = f"runs of the tier {tier} enter no control group"
        if tier in _GROUPED:
            self.why = self._settle()

    def _settle(self) -> str:
        why = "no control group counts memory on this host"
        for self.kind, parent in places():
            try:
                self.home, self.lock = _home(parent, self.kind)
            except OSError as error:
                why = f"no control group can be used in {parent} ({error.strerror})"
            else:
                return ""
        return why

    def open(self, slot: int) -> list[int]:
        """Descriptors for the slot's Group; none where there are no groups."""
        try:
            return [] if self.home is None else self._open(self.home / str(slot))
        except OSError:
            return []  # a group that others removed

    def _open(self, group: Path) -> list[int]:
        group.mkdir(exist_ok=True)
        files = [group / name for name in ("memory.stat", *_counters(group, self.kind))]
        flags = os.O_RDONLY | os.O_CLOEXEC
        return [os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC), *(os.open(file, flags) for file in files)]

    def close(self) -> None:
        """Remove them all; nobody may be in there any more."""
        if self.home is not None:
            _remove(self.home)
            os.close(self.lock)
            self.home = None


def places(mountinfo: str = "/proc/self/mountinfo", own: str = "/proc/self/cgroup") -> Iterator[tuple[Kind, Path]]:
    """Where groups might be made, the better ones first: beneath this process's own group.

    In version 2 a group with processes has no groups that count; then beside it, unless that evades its limit.
    """
    paths = {names: path for _, names, path in (line.split(":", 2) for line in _lines(own))}
    for line in _lines(mountinfo):
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        options = after.split()[-1].split(",")
        if after.startswith("cgroup2 ") and "" in paths:
            folder = _below(Path(point), root, paths[""])
            if "memory" not in (_read(folder / "cgroup.controllers") or "").split():
                continue  # version 1 counts it, or nobody
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
    """An own group with room for one a slot, and the lock that says that somebody needs it. Raises OSError."""
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
    """The first must be there, with swap or without."""
    found = [name for name in kind.counters if (group / name).exists()]
    if kind.counters[0] not in found:
        found.insert(0, _WITHOUT_SWAP.get(kind.counters[0], kind.counters[0]))
        os.stat(group / found[0])
    if "memory.kmem.tcp.usage_in_bytes" in found:  # counted only where there is a limit
        with suppress(OSError):
            (group / "memory.kmem.tcp.limit_in_bytes").write_text(str(1 << 40))
    return found


def _try(group: Path) -> None:
    """Whether a process can go in."""
    door = os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.write(door, b"0")
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 1)
    os.close(door)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


def _clean(parent: Path) -> None:
    """Remove what supervisors that were killed have left."""
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
    """The kernel needs a moment after the last process."""
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
