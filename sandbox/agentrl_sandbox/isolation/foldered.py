"""What the tiers that cannot mount share: folders of the host a slot, bounded by looking at them.

Where the server is root each slot has a user of its own, and the warden touches files as that user alone: what a run
left behind can lead it nowhere that the run could not go itself.
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from agentrl_sandbox.isolation import Host, Tier, children, descendants, end_all, has_children, sweep
from agentrl_sandbox.isolation.none import tasks_of
from agentrl_sandbox.isolation.trees import clear, deleted_but_open, size, size_of_files
from agentrl_sandbox.job import Limits
from agentrl_sandbox.kernel import syscalls

_LOOK_SHARE = 0.1


class Foldered(Tier):
    """Work folder and folder for temporary files, under the pool's own folder."""

    box = tmp = ""
    runner: int | None = None
    """User id of the run, where it is not the server's."""
    next_look = 0.0
    staged: Collection[str] = ()
    """Paths of the files that the run found in its work folder."""
    kept = False
    """What the run leaves there is wanted."""
    used = True
    """A run may have been in the folders since they were made."""

    def settle(self, host: Host) -> None:
        """Whatever outlives a killed warden becomes this process's child, where the slot's next warden finds it."""
        super().settle(host)
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)

    def reaches(self, path: str) -> bool:
        """In the server: whether runs may walk to a path."""
        if self.host.uid is not None:
            syscalls.set_filesystem_ids(self.host.uid, self.host.uid)
        try:
            return os.path.exists(path)
        finally:
            syscalls.set_filesystem_ids(os.getuid(), os.getgid())

    def enter(self, slot: int, limits: Limits) -> None:
        """The slot's folders and user."""
        super().enter(slot, limits)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        self.runner = None if self.host.uid is None else self.host.uid + 1 + slot
        self._end_orphans()
        self.place = place_of(self.host.folder, slot)
        self.box, self.tmp = (os.path.join(self.place, name) for name in ("box", "tmp"))
        os.makedirs(self.place, mode=0o711, exist_ok=True)
        for folder in (self.box, self.tmp):
            self._make(folder)
        self._touch_as_runner()

    def _make(self, folder: str) -> None:
        os.makedirs(folder, mode=0o711, exist_ok=True)
        if self.runner is not None:
            os.chown(folder, self.runner, self.runner)

    def _touch_as_runner(self) -> None:
        if self.runner is not None:
            syscalls.set_filesystem_ids(self.runner, self.runner)

    def _end_orphans(self) -> None:
        """Processes of a warden that was killed: the server's children in a session other than its own."""
        if self.runner is not None:
            kill_all_of(self.runner)
            return
        end_all(_orphans)

    def fresh(self, limits: Limits) -> str:
        """Both folders empty."""
        self.leave()
        self.next_look = 0.0
        return self.box

    def expect(self, paths: Collection[str], *, kept: bool) -> None:
        """From now on the folders are used."""
        self.staged, self.used, self.kept = tuple(paths), True, kept

    def first_place(self, folder: str) -> str | None:
        """A folder of its own for each slot."""
        return place_of(folder, 0)

    def environment(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """With those of the place."""
        return env if self.place is None else {**env, **self.variables(self.place)}

    def overfull(self, limits: Limits, *, ended: bool = False) -> bool:
        """Whether the folders hold more than they may; until it ended, looking takes a tenth of the time at most."""
        begin = time.monotonic()
        if begin < self.next_look and not ended:
            return False
        pids = self.processes()
        taken = self._untouched()
        if taken is None or len(self.staged) > limits.inodes:
            over = self._aside(lambda: self._over(limits, pids) or (ended and self._emptied_early()))
        else:
            over = taken + deleted_but_open(pids) > limits.disk_mb << 20
        now = time.monotonic()
        self.next_look = now + (now - begin) / _LOOK_SHARE
        return over

    def _untouched(self) -> int | None:
        """Bytes in the folders, where the run made no files and left none but those it found."""
        return size_of_files(self.box, self.staged) if size_of_files(self.tmp, ()) == 0 else None

    def _over(self, limits: Limits, pids: Sequence[int]) -> bool:
        try:
            sizes = [size(folder, limits.inodes) for folder in (self.box, self.tmp)]
        except OSError:
            return True
        taken = sum(taken for taken, _ in sizes) + deleted_but_open(pids)
        entries = sum(entries for _, entries in sizes)
        return taken > limits.disk_mb << 20 or entries > limits.inodes

    def _emptied_early(self) -> bool:
        """One process for both: what `leave` would do next is done, unless the files are wanted. Never says more."""
        with contextlib.suppress(OSError):  # `leave` finds out
            return not self.kept and self._cleared()
        return False

    def _aside(self, look: Callable[[], bool]) -> bool:
        """What `look` finds. The next run may be a fork of this process: names of files must not be left in its memory,
        so a child reads them. Its fork costs a quarter of a run: only runs that made files need it."""
        if not self.forks_python:
            return look()
        pid = syscalls.fork()
        if pid == 0:
            found = True
            try:
                found = look()
            finally:
                os._exit(found)
        return os.waitpid(pid, 0)[1] != 0

    def others(self) -> int:
        """All that the server's user runs; a slot's own user runs nothing else."""
        return tasks_of(os.getuid()) if self.runner is None else 0

    def become_runner(self) -> None:
        """In the user's process: change to the slot's user, where there is one."""
        if self.runner is not None:
            os.setgroups([])
            os.setresgid(self.runner, self.runner, self.runner)
            os.setresuid(self.runner, self.runner, self.runner)

    def end(self) -> None:
        """Under a user of its own one call kills all at once; the sweep then reaps.

        Whatever a run started is below this process, a subreaper: no child, no process.
        """
        if self.runner is not None and has_children():
            kill_all_of(self.runner)
        sweep()

    def leave(self) -> None:
        """Makes both folders anew. Raises OSError."""
        if not self.box or not self.used:
            return
        for name in self.staged:
            if "/" not in name:  # else a link that the run put in its way would be followed
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.box, name))
        if not self._remade() and (self._aside(self._cleared) or not self._remade()):
            raise OSError(errno.EBUSY, f"{self.place} cannot be emptied")
        self.staged, self.used = (), False

    def _remade(self) -> bool:
        """Whether both were empty and are new: mode, times and attributes of the old ones were the run's to set."""
        syscalls.set_filesystem_ids(os.getuid(), os.getgid())
        try:
            for folder in (self.box, self.tmp):
                os.rmdir(folder)
                self._make(folder)
        except OSError:
            return False
        finally:
            self._touch_as_runner()
        return True

    def _cleared(self) -> bool:
        for folder in (self.box, self.tmp):
            clear(folder)
        return False


def place_of(folder: str, slot: int) -> str:
    """The folder of a slot; all are of one length."""
    return os.path.join(folder, f"{slot:06}")


def _orphans() -> set[int]:
    roots = {pid for pid in children(os.getppid()) if _session(pid) not in (None, os.getsid(0))}
    return roots.union(*map(descendants, roots))


def kill_all_of(uid: int) -> None:
    """SIGKILL to every process of a user, in one call that no fork can outrun. Needs root."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        os.setresuid(uid, uid, uid)
        os.kill(-1, signal.SIGKILL)
    finally:
        os._exit(0)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
