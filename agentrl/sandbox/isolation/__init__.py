"""Tiers: ways to shut a run in. A tier says how a child confines itself and how its processes are ended.

Three kinds of processes call it, each forked from the one before; none has more than one thread.

- the *server*, one per interpreter flavour, lives long and forks wardens: `settle` once, then `clone` per job;
- the *warden*, one per job, is trusted and runs the job's commands one after another: `enter` once, `fresh` before
  each command, then it forks the user's process; `processes` while that runs, `end` when it is over, `leave` last;
- the *user's* process: `confine`, then the user's program, by exec or (where `forks_python`) in the forked interpreter.

Everything raises OSError where the host refuses; the canaries at start turn that into the choice of a tier.
"""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.sandbox.job import Limits
from agentrl.sandbox.kernel import syscalls


@dataclass(frozen=True)
class Host:
    """What the server is told."""

    roots: tuple[str, ...]
    """Folders beyond the system's own that a run may read: interpreters, toolchains."""
    slots: int
    """At most so many wardens at once, numbered from 0."""
    uid: int | None
    """First of `slots` + 1 unused user ids, where the server is root; None: it is an ordinary user."""
    folder: str
    """An empty folder of the pool's own, mode 0711, for tiers that cannot mount."""


class Tier:
    """Base of all tiers; as it stands it isolates nothing."""

    name = "none"
    forks_python = False
    """The user's Python may run in a fork of the warm interpreter; else every program is started by exec."""
    work = "/box"
    """The work folder as the user's program sees it, the same for all runs (`forks_python` needs that)."""

    def settle(self, host: Host) -> None:
        """In the server, after the interpreter is warm. May go on in a child process and leave the parent."""
        self.host = host

    def clone(self) -> tuple[int, int]:
        """Fork a warden: (pid, pidfd); (0, -1) in the warden."""
        return syscalls.clone(0)

    def enter(self, slot: int, limits: Limits) -> None:
        """In the warden: what holds for the whole job. Remains of an earlier, killed warden of `slot` are removed."""
        self.slot = slot
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def fresh(self, limits: Limits) -> str:
        """In the warden: an empty work folder, an empty /tmp; the ones before are gone. Path as the warden sees it."""
        raise NotImplementedError

    def own(self) -> None:
        """In the warden: from here to `disown`, files are made and opened with the rights of the user's process."""

    def disown(self) -> None:
        """The warden is itself again."""

    def command(self, argv: Sequence[str]) -> Sequence[str]:
        """The command that is started in place of `argv`."""
        return argv

    def confine(self, limits: Limits) -> None:
        """In the user's process, last of all: stdio is in place, the work folder is the current one, rlimits are set."""

    def processes(self) -> list[int]:
        """In the warden: pids of the user's processes that are alive."""
        return descendants(os.getpid())

    def end(self) -> None:
        """In the warden: when it returns, no process of the run is left, not even a zombie."""
        sweep()

    def leave(self) -> None:
        """In the warden: remove what would outlive it."""


def descendants(pid: int) -> list[int]:
    """All children of `pid`, and theirs."""
    found: list[int] = []
    queue = [pid]
    while queue:
        for child in children(queue.pop()):
            found.append(child)
            queue.append(child)
    return found


def children(pid: int) -> list[int]:
    """The children of a process, by whichever thread they were forked."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except OSError:
        pass  # it ended meanwhile, and its children are somebody else's now
    return found


def sweep() -> None:
    """End every descendant of this process, a subreaper: stop them all until no new one shows up, kill, reap."""
    stopped: set[int] = set()
    while found := set(descendants(os.getpid())) - stopped:
        _signal(found, signal.SIGSTOP)
        stopped |= found
    _signal(stopped, signal.SIGKILL)
    reap()
    if stopped:
        sweep()  # a double fork may have slipped by between two looks


def reap() -> None:
    """Wait until this process has no children."""
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
