"""Isolation tiers. A tier says how a process confines itself, and how the processes of a run are ended.

Three kinds of processes call it, each forked from the one before, each with one thread:

- The *zygote*, one per interpreter flavour, is long-lived and forks job supervisors: `prepare_zygote` once, then
  `clone` per job.
- The *job supervisor*, one per job, is trusted and runs the job's commands one after another: `enter_slot` once,
  `new_work_folder` before each command; then it forks the user's process; `processes` while that runs, `kill_all` after
  it, `clean_up` last.
- The *user's process*: `confine`, then the user's program, by exec or (with `forks_python`) in the forked interpreter.

Every method raises OSError if the host refuses; the canaries at the start turn that into the choice of a tier.
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
from agentrl_sandbox.kernel.cgroup import Cgroup


@dataclass(frozen=True)
class Host:
    """The host, for the zygote."""

    roots: tuple[str, ...]
    """Folders beside the system's that a run may read: interpreters, toolchains."""
    slots: int
    """Job supervisors at once, numbered from 0."""
    uid: int | None
    """First of `slots` + 1 unused user ids if the zygote is root; None for an ordinary user."""
    folder: str
    """An empty folder of the pool, mode 0711, for tiers that cannot mount."""
    bwrap: str | None = None
    """Path of bubblewrap."""


WORK = "/box"
"""The work folder in tiers that mount."""


@dataclass(frozen=True)
class Probe:
    """Whether a tier works on this host."""

    tier: str
    ok: bool
    why: str = ""
    """Why it does not work."""
    fix: str = ""
    """How to make it work."""


class Tier:
    """Base of all tiers. It isolates nothing itself."""

    name = "none"
    forks_python = False
    """The user's Python may run in a fork of the zygote's interpreter; else every program is started by exec."""
    ignores_modes = False
    """chmod does nothing, so a compiler's output is not marked as executable."""
    reusable = False
    """A job supervisor may do several jobs, one after another."""
    disk_is_memory = False
    """The files of a run lie in memory and count as memory."""
    cgroup: Cgroup | None = None
    """Counts the memory of a job supervisor that may do several jobs, if the host allows it."""
    work = WORK
    """The work folder as the user's program sees it."""
    slot_folder: str | None = None
    """In the job supervisor: the slot's folder, which holds its work folder; the paths of all slots have one length."""

    def first_slot_folder(self, folder: str) -> str | None:
        """The folder of slot 0, below the pool's `folder`; None if slots have none."""
        return None

    def variables(self, slot_folder: str) -> dict[str, str]:
        """Environment variables of the runs in a slot."""
        return {}

    def prepare_zygote(self, host: Host) -> None:
        """In the zygote, after its imports. May continue in a child process and end the parent."""
        self.host = host

    def clone(self) -> tuple[int, int]:
        """Fork a job supervisor: (pid, pidfd); (0, -1) in the job supervisor."""
        return syscalls.clone(0)

    def enter_slot(self, slot: int, limits: Limits) -> None:
        """In the job supervisor: prepare for the whole job, and remove what a killed predecessor in `slot` left."""
        self.slot = slot
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def reset(self) -> None:
        """In a `reusable` job supervisor, after a job: remove everything that the next job could find."""
        raise NotImplementedError

    def new_work_folder(self, limits: Limits) -> str:
        """In the job supervisor: replace the work folder and /tmp by empty ones; the work folder's path."""
        raise NotImplementedError

    def expect_files(self, paths: Collection[str], *, kept: bool) -> None:
        """In the job supervisor, before these relative paths are written to the work folder. `kept`: the files that
        the run leaves there are read afterwards."""

    def command(self, argv: Sequence[str]) -> Sequence[str]:
        """The command that is started in place of `argv`."""
        return argv

    def environment(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """The variables that are given in place of `env`."""
        return env

    def confine(self, limits: Limits) -> None:
        """In the user's process, last of all: stdio, the current folder and rlimits are set."""

    def other_processes(self) -> int:
        """In the job supervisor: processes that RLIMIT_NPROC counts beside the user's own."""
        return 1

    def processes(self) -> list[int]:
        """In the job supervisor: pids of the living processes of the user."""
        return descendants(os.getpid())

    def pause(self) -> None:
        """In the job supervisor: stop the processes of a session between two cells."""
        _signal(set(self.processes()), signal.SIGSTOP)

    def resume(self) -> None:
        """In the job supervisor: continue them."""
        _signal(set(self.processes()), signal.SIGCONT)

    def disk_exceeded(self, limits: Limits, *, ended: bool = False) -> bool:
        """In the job supervisor: whether the user's files exceed the limits, if no mount bounds them."""
        return False

    def exit_code(self, code: int) -> int:
        """The exit code of the user's process, from that of the command started in its place."""
        return code

    def kill_all(self) -> None:
        """In the job supervisor: end every process of the run, and reap it."""
        kill_descendants()

    def clean_up(self) -> None:
        """In the job supervisor: remove everything that would outlive it."""


TIERS = {
    "namespace": "namespace:Namespace",
    "bwrap": "bwrap:Bwrap",
    "landlock": "landlock:Landlock",
    "none": "none:Unisolated",
}
"""In the order of choice; the last one only on request."""


def load(name: str) -> Tier:
    """The tier of that name. Raises ImportError if it is missing."""
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
    """The children of a process, forked by any of its threads."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass  # it ended meanwhile, and its children have another parent
    return found


def has_children() -> bool:
    """Whether this process has children that run; those that ended are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def kill_descendants() -> None:
    """End every descendant of this process, a subreaper."""
    kill_found(_descendants_alive)


def kill_found(find: Callable[[], set[int]]) -> None:
    """Stop the processes that `find` returns until no new one appears, then kill them; repeat until it returns none.

    The next round finds the fork of a process that was not yet stopped.
    """
    while stopped := find():
        _signal(stopped, signal.SIGSTOP)
        while more := find() - stopped:
            _signal(more, signal.SIGSTOP)
            stopped |= more
        _signal(stopped, signal.SIGKILL)
        time.sleep(0.001)


def _descendants_alive() -> set[int]:
    """Reap those that ended; the others."""
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
