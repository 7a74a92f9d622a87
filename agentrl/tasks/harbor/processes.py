"""Stops processes that an agent left running, before the tests arrive.

A process that serves (it listens on a port or a Unix socket) goes on with its children: many tasks ask for a service.
Those that ran before the agent go on too. All others are killed: nothing waits for the tests, to change them or their
result.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agentrl.containers import Container
from agentrl.core.errors import InfraError

KILL_ROUNDS = 3
"""A process may start another one while it is looked at."""
TIMEOUT = 30.0
LISTED = """echo "$$"; echo /proc/[0-9]*; echo @
cat /proc/[0-9]*/stat 2>/dev/null; echo @
cat /proc/[0-9]*/status 2>/dev/null; echo @
ls -l /proc/[0-9]*/fd 2>/dev/null; echo @
cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6 2>/dev/null; echo @
cat /proc/net/unix 2>/dev/null"""
TCP_LISTENS, UDP_OPEN, UNIX_LISTENS = "0A", "07", "00010000"


@dataclass(frozen=True)
class Process:
    """A process of the container."""

    pid: int
    parent: int = 0
    started: int = -1
    """Clock ticks since the host's boot: tells it from a later one with its number."""
    owner: str = "0:0"
    """Numbers of its user and group."""

    @property
    def life(self) -> tuple[int, int]:
        """Equal for one process at two moments, and for nothing else."""
        return self.pid, self.started


@dataclass(frozen=True)
class Seen:
    """All processes at one moment."""

    processes: tuple[Process, ...]
    sockets: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Process -> inodes of its sockets, of processes that may be looked into."""
    listening: frozenset[int] = frozenset()
    """Inodes of sockets that wait for others."""

    def serving(self) -> set[int]:
        """Processes with a socket that waits for others, and all their children. Those of process 1 are no children:
        it adopts all that have lost their parent."""
        found = {pid for pid, sockets in self.sockets.items() if sockets & self.listening}
        while more := {one.pid for one in self.processes if one.parent in found - {1}} - found:
            found |= more
        return found


async def look(container: Container) -> Seen:
    """The processes of a container. Raises InfraError."""
    seen = parse(await _listing(container, "0:0"))
    hidden = {one.owner for one in seen.processes if one.pid not in seen.sockets} - {"0:0"}
    sockets = dict(seen.sockets)
    for owner in sorted(hidden):  # without SYS_PTRACE root sees the files of its own processes alone
        sockets.update(parse(await _listing(container, owner)).sockets)
    return Seen(seen.processes, sockets, seen.listening)


async def stop_left(container: Container, before: Iterable[Process]) -> None:
    """Kill what neither ran before nor serves. Raises InfraError."""
    kept = {one.life for one in before}
    for _ in range(KILL_ROUNDS):
        seen = await look(container)
        spared = {1} | seen.serving()
        left = [one.pid for one in seen.processes if one.life not in kept and one.pid not in spared]
        if not left:
            break
        await container.exec(f"kill -KILL {' '.join(map(str, left))}", timeout=TIMEOUT, user="0:0", cwd="/")


def parse(text: str) -> Seen:
    """Reads the output of `LISTED`. A process whose line cannot be read is listed with its number alone."""
    head, stats, statuses, files, internet, unix = (text.split("\n@\n") + [""] * 6)[:6]
    own, _, names = head.partition("\n")
    pids = {int(pid) for pid in re.findall(r"/proc/(\d+)", names)} - {int(own or 0)}
    known = _processes(stats, _owners(statuses))
    processes = tuple(known.get(pid, Process(pid)) for pid in sorted(pids))
    return Seen(processes, _sockets(files), _listening(internet, unix))


async def _listing(container: Container, user: str) -> str:
    done = await container.exec(LISTED, timeout=TIMEOUT, user=user, cwd="/")
    if done.code != 0 and "@" not in done.stdout:
        raise InfraError(f"the processes of {container.name} cannot be listed: {done.output.strip()[-200:]}")
    return done.stdout


def _processes(stats: str, owners: Mapping[int, str]) -> dict[int, Process]:
    found = {}
    for line in stats.splitlines():
        start, _, rest = line.rpartition(")")
        words, pid = rest.split(), start.partition(" ")[0]
        if pid.isdigit() and len(words) > 19:
            found[int(pid)] = Process(int(pid), int(words[1]), int(words[19]), owners.get(int(pid), "0:0"))
    return found


def _owners(statuses: str) -> dict[int, str]:
    pattern = re.compile(r"^Pid:\s+(\d+)$.*?^Uid:\s+\d+\s+(\d+).*?^Gid:\s+\d+\s+(\d+)", re.MULTILINE | re.DOTALL)
    return {int(pid): f"{user}:{group}" for pid, user, group in pattern.findall(statuses)}


def _sockets(files: str) -> dict[int, frozenset[int]]:
    parts = re.split(r"^/proc/(\d+)/fd:$", files, flags=re.MULTILINE)[1:]
    listed = {int(pid): text for pid, text in zip(parts[::2], parts[1::2], strict=True)}
    found = {pid: re.findall(r"socket:\[(\d+)\]", text) for pid, text in listed.items() if "->" in text}
    return {pid: frozenset(map(int, inodes)) for pid, inodes in found.items()}


def _listening(internet: str, unix: str) -> frozenset[int]:
    rows = [line.split() for line in internet.splitlines()]
    found = {row[9] for row in rows if len(row) > 9 and row[3] in (TCP_LISTENS, UDP_OPEN)}
    rows = [line.split() for line in unix.splitlines()]
    found |= {row[6] for row in rows if len(row) > 6 and row[3] == UNIX_LISTENS}
    return frozenset(int(inode) for inode in found if inode.isdigit())
