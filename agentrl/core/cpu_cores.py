"""The CPU cores of this process: how many it may use, how many are idle, and how its threads wait for each other.

OpenMP threads meet at the end of every operation. A thread that meets a busy process on its core keeps the others
waiting, and by default they wait in a loop that takes the core from the thread that they wait for. So threads sleep
while they wait, and there are as many as idle cores. Invariants: nothing here imports torch; values that the user set
stay unchanged.
"""

import os
import time
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

CHOSEN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables with which a user says how threads wait."""
SPINS = "1000"
"""Turns of the loop in which a thread waits before it sleeps, some 10 to 40 microseconds: operations that follow each
other at once find it awake."""
SAMPLE = 0.2
"""Seconds for which the cores are watched."""


@dataclass(frozen=True)
class Host:
    """Where a host says these things."""

    stat: Path = Path("/proc/stat")
    member: Path = Path("/proc/self/cgroup")
    cgroups: Path = Path("/sys/fs/cgroup")

    def allowed(self) -> int:
        """Cores that this process may use: those of its affinity, and no more than its cgroup's quota."""
        return max(1, min(len(affinity()), int(min(self._quotas(), default=1e9))))

    def idle(self, seconds: float = SAMPLE) -> int:
        """Number of allowed cores that nothing uses now; at least half of the allowed ones, this process's share."""
        allowed = self.allowed()
        return max((allowed + 1) // 2, min(allowed, round(self._unused(seconds))))

    def _unused(self, seconds: float) -> float:
        """Cores' worth of time that went unused, of those in the affinity."""
        before = self._ticks()
        if not before:  # no Linux
            return len(affinity()) - os.getloadavg()[0]
        time.sleep(seconds)
        return sum(share(before[core], ticks) for core, ticks in self._ticks().items() if core in before)

    def _ticks(self) -> dict[int, list[int]]:
        """By core: ticks spent as user, nice, system, idle, waiting for disks, ..."""
        try:
            lines = [line.split() for line in self.stat.read_text().splitlines()]
        except OSError:
            return {}
        cores = {int(line[0][3:]): list(map(int, line[1:])) for line in lines if line and line[0][3:].isdecimal()}
        return {core: ticks for core, ticks in cores.items() if core in affinity()}

    def _quotas(self) -> Iterator[float]:
        """Cores' worth of time that the cgroup, and each around it, may take (cgroup v2)."""
        try:
            path = next(line[3:] for line in self.member.read_text().splitlines() if line.startswith("0::"))
        except (OSError, StopIteration):
            path = "/"
        inner = self.cgroups / path.strip("/")
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(self.cgroups):
                yield from _quota(folder / "cpu.max")


def _quota(file: Path) -> Iterator[float]:
    try:
        most, period = file.read_text().split()
    except (OSError, ValueError):
        return
    if most != "max":
        yield int(most) / int(period)


def share(before: list[int], after: list[int]) -> float:
    """The part of a core's time that was unused between two readings; ticks of niced processes give way."""
    spent = [now - then for then, now in zip(before, after, strict=True)]
    unused = spent[1] + spent[3] + spent[4]
    return unused / sum(spent) if sum(spent) else 1.0


def affinity() -> set[int]:
    """Numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def wait_passively(environment: MutableMapping[str, str]) -> None:
    """Have OpenMP threads sleep while they wait, unless a variable says otherwise. Before torch is imported."""
    if not any(name in environment for name in CHOSEN):
        environment.update(OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT=SPINS)


def threads_set_by_user() -> int:
    """The number of threads that the user set in an environment variable; 0: none."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        number = os.environ.get(name, "").partition(",")[0].strip()
        if number.isdecimal():
            return int(number)
    return 0


def threads_of_rank(ranks: int, *, steady: bool = False) -> int:
    """Threads of each of `ranks` processes on this machine: an equal part of its idle cores, or the user's number.

    `steady`: count busy cores too. The number is then always the same, and with it the last bits of every sum.
    """
    host = Host()
    return threads_set_by_user() or max(1, (host.allowed() if steady else host.idle()) // ranks)
