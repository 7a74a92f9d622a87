"""Tiers: ways to shut a run in. A tier says how a child confines itself and how its processes are ended.

Three kinds of processes call it, each forked from the one before; none has more than one thread.

- the *server*, one per interpreter flavour, lives long and forks wardens: `settle` once, then `clone` per job;
- the *warden*, one per job, is trusted and runs the job's commands one after another: `enter` once, `fresh` before
  each command, then it forks the user's process; `processes` while that runs, `end` when it is over, `leave` last;
- the *user's* process: `confine`, then the user's program, by exec or (where `forks_python`) in the forked interpreter.

Everything raises OSError where the host refuses; the canaries at start turn that into the choice of a tier.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from agentrl_sandbox.job import Limits
from agentrl_sandbox.kernel import syscalls
from agentrl_sandbox.kernel.group import Group


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
    bwrap: str | None = None
    """Where bubblewrap is."""


WORK = "/box"
"""The work folder, where a tier mounts."""


@dataclass(frozen=True)
class Probe:
    """Whether a tier works on this host."""

    tier: str
    ok: bool
    why: str = ""
    """What stands against it."""
    mend: str = ""
    """How to get it."""


class Tier:
    """Base of all tiers; as it stands it isolates nothing."""

    name = "none"
    forks_python = False
    """The user's Python may run in a fork of the warm interpreter; else every program is started by exec."""
    fakes_modes = False
    """Changing a file's mode does nothing: what a compiler made does not say that it is a program."""
    renews = False
    """A warden may do one job after another."""
    disk_is_memory = False
    """The files of a run lie in memory and count as such."""
    group: Group | None = None
    """Counts the memory of a warden that may do several jobs, where the host allows for that."""
    work = WORK
    """The work folder as the user's program sees it."""
    place: str | None = None
    """In the warden: the folder that holds the work folder, where each slot has one; of one length for all."""

    def first_place(self, folder: str) -> str | None:
        """The first slot's, below the pool's `folder`."""
        return None

    def variables(self, place: str) -> dict[str, str]:
        """Environment variables of the runs at a place."""
        return {}

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

    def renew(self) -> None:
        """In the warden, after a job, where the tier `renews`: nothing of it is left to be found by the next."""
        raise NotImplementedError

    def fresh(self, limits: Limits) -> str:
        """In the warden: an empty work folder, an empty /tmp; the ones before are gone. Path as the warden sees it."""
        raise NotImplementedError

    def expect(self, paths: Collection[str], *, kept: bool) -> None:
        """In the warden: files of these relative paths are about to be put into the work folder; `kept`: what is in
        there when the run has ended is wanted."""

    def command(self, argv: Sequence[str]) -> Sequence[str]:
        """The command that is started in place of `argv`."""
        return argv

    def environment(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """The variables that are given in place of `env`."""
        return env

    def confine(self, limits: Limits) -> None:
        """In the user's process, last of all: stdio, the current folder and rlimits are set."""

    def others(self) -> int:
        """In the warden: processes that RLIMIT_NPROC counts along with the user's own."""
        return 1

    def processes(self) -> list[int]:
        """In the warden: pids of the user's processes that are alive."""
        return descendants(os.getpid())

    def pause(self) -> None:
        """In the warden: between two cells of a session nothing of it runs."""
        _signal(set(self.processes()), signal.SIGSTOP)

    def resume(self) -> None:
        """In the warden: the end of a pause."""
        _signal(set(self.processes()), signal.SIGCONT)

    def overfull(self, limits: Limits, *, ended: bool = False) -> bool:
        """In the warden: whether the user's files exceed the limits, where no mount bounds them."""
        return False

    def exit_code(self, code: int) -> int:
        """What became of the user's process, from what became of the command started in its place."""
        return code

    def end(self) -> None:
        """In the warden: when it returns, no process of the run is left, not even a zombie."""
        sweep()

    def leave(self) -> None:
        """In the warden: remove what would outlive it."""


TIERS = {
    "namespace": "namespace:Namespace",
    "bwrap": "bwrap:Bwrap",
    "landlock": "landlock:Landlock",
    "none": "none:Unisolated",
}
"""In the order of choice; the last one only where it is asked for."""


def load(name: str) -> Tier:
    """The tier of that name. Raises ImportError where it is not built."""
    module, _, kind = TIERS[name].partition(":")
    found: type[Tier] = getattr(import_module(f"{__name__}.{module}"), kind)
    return found()


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
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass  # it ended meanwhile, and its children are somebody else's now
    return found


def has_children() -> bool:
    """Whether this process has any, be they alive or not; those that ended are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def sweep() -> None:
    """End every descendant of this process, a subreaper."""
    end_all(_descendants_alive)


def end_all(find: Callable[[], set[int]]) -> None:
    """Stop the processes that `find` gives until no new one shows up, then kill them; until it gives none.

    One that slipped by between two looks, a fork of a process not yet stopped, is found in the next round.
    """
    while stopped := find():
        _signal(stopped, signal.SIGSTOP)
        while more := find() - stopped:
            _signal(more, signal.SIGSTOP)
            stopped |= more
        _signal(stopped, signal.SIGKILL)
        time.sleep(0.001)


def _descendants_alive() -> set[int]:
    """Reaps those that ended."""
    return set(descendants(os.getpid())) if has_children() else set()


def reap() -> None:
    """Wait until this process has no children."""
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
