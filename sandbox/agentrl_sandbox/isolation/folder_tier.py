"""The base of tiers that cannot mount: each slot has folders of the host, which are bounded by polling.

If the sandbox is root, each slot has a user of its own, and the job supervisor touches files only as that user: a run
cannot lead it to a file that the run itself cannot reach.
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from agentrl_sandbox.isolation import Host, Tier, children, descendants, has_children, kill_descendants, kill_found
from agentrl_sandbox.isolation.folder_contents import clear, deleted_but_open, size, size_of_files
from agentrl_sandbox.isolation.none import count_tasks
from agentrl_sandbox.job import Limits
from agentrl_sandbox.kernel import syscalls

_POLL_SHARE = 0.1


class FolderTier(Tier):
    """A work folder and a folder for temporary files, below the pool's folder."""

    box = tmp = ""
    runner: int | None = None
    """User id of the run, if it is not the zygote's."""
    next_poll = 0.0
    staged: Collection[str] = ()
    """Paths of the files that the run starts with."""
    kept = False
    """The files of the run are read after it."""
    used = True
    """A run may have used the folders since they were made."""

    def prepare_zygote(self, host: Host) -> None:
        """Become a subreaper: the orphans of a killed job supervisor become children, which its successor ends."""
        super().prepare_zygote(host)
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)

    def reaches(self, path: str) -> bool:
        """In the zygote: whether runs can reach a path."""
        if self.host.uid is not None:
            syscalls.set_filesystem_ids(self.host.uid, self.host.uid)
        try:
            return os.path.exists(path)
        finally:
            syscalls.set_filesystem_ids(os.getuid(), os.getgid())

    def enter_slot(self, slot: int, limits: Limits) -> None:
        """Prepare the slot's folders and user."""
        super().enter_slot(slot, limits)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        self.runner = None if self.host.uid is None else self.host.uid + 1 + slot
        self._end_orphans()
        self.slot_folder = slot_folder_path(self.host.folder, slot)
        self.box, self.tmp = (os.path.join(self.slot_folder, name) for name in ("box", "tmp"))
        os.makedirs(self.slot_folder, mode=0o711, exist_ok=True)
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
        """End processes of a killed job supervisor: children of the zygote in another session than its own."""
        if self.runner is not None:
            kill_user(self.runner)
            return
        kill_found(_orphans)

    def new_work_folder(self, limits: Limits) -> str:
        """Empty both folders."""
        self.clean_up()
        self.next_poll = 0.0
        return self.box

    def expect_files(self, paths: Collection[str], *, kept: bool) -> None:
        """Mark the folders as used."""
        self.staged, self.used, self.kept = tuple(paths), True, kept

    def first_slot_folder(self, folder: str) -> str | None:
        """A folder of its own for each slot."""
        return slot_folder_path(folder, 0)

    def environment(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """The variables, with those of the slot."""
        return env if self.slot_folder is None else {**env, **self.variables(self.slot_folder)}

    def disk_exceeded(self, limits: Limits, *, ended: bool = False) -> bool:
        """Whether the folders exceed the limits. While the run lasts, polling takes at most a tenth of the time."""
        begin = time.monotonic()
        if begin < self.next_poll and not ended:
            return False
        pids = self.processes()
        taken = self._staged_bytes()
        if taken is None or len(self.staged) > limits.inodes:
            over = self._in_child(lambda: self._over(limits, pids) or (ended and self._clear_early()))
        else:
            over = taken + deleted_but_open(pids) > limits.disk_mb << 20
        now = time.monotonic()
        self.next_poll = now + (now - begin) / _POLL_SHARE
        return over

    def _staged_bytes(self) -> int | None:
        """Bytes in the folders if they hold only the files that the run started with, else None."""
        return size_of_files(self.box, self.staged) if size_of_files(self.tmp, ()) == 0 else None

    def _over(self, limits: Limits, pids: Sequence[int]) -> bool:
        try:
            sizes = [size(folder, limits.inodes) for folder in (self.box, self.tmp)]
        except OSError:
            return True
        taken = sum(taken for taken, _ in sizes) + deleted_but_open(pids)
        entries = sum(entries for _, entries in sizes)
        return taken > limits.disk_mb << 20 or entries > limits.inodes

    def _clear_early(self) -> bool:
        """Clear the folders in the same child process, unless the files are read afterwards. Always False."""
        with contextlib.suppress(OSError):  # `clean_up` reports it
            return not self.kept and self._cleared()
        return False

    def _in_child(self, look: Callable[[], bool]) -> bool:
        """The result of `look`, called in a child process.

        The next run may be a fork of this process, so names of files must not stay in its memory. The fork costs a
        quarter of a run; only runs that made files need it.
        """
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

    def other_processes(self) -> int:
        """All tasks of the zygote's user; a slot's own user has no other tasks."""
        return count_tasks(os.getuid()) if self.runner is None else 0

    def become_runner(self) -> None:
        """In the user's process: change to the slot's user, if it has one."""
        if self.runner is not None:
            os.setgroups([])
            os.setresgid(self.runner, self.runner, self.runner)
            os.setresuid(self.runner, self.runner, self.runner)

    def kill_all(self) -> None:
        """Kill all processes of the slot's user in one call, then reap the descendants.

        This process is a subreaper, so all processes of a run are its descendants.
        """
        if self.runner is not None and has_children():
            kill_user(self.runner)
        kill_descendants()

    def clean_up(self) -> None:
        """Replace both folders. Raises OSError."""
        if not self.box or not self.used:
            return
        for name in self.staged:
            if "/" not in name:  # else a link of the run would be followed
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.box, name))
        if not self._replaced() and (self._in_child(self._cleared) or not self._replaced()):
            raise OSError(errno.EBUSY, f"{self.slot_folder} cannot be emptied")
        self.staged, self.used = (), False

    def _replaced(self) -> bool:
        """Replace both folders if they are empty, because the run may have changed their mode, times and attributes."""
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


def slot_folder_path(folder: str, slot: int) -> str:
    """The folder of a slot; all have paths of one length."""
    return os.path.join(folder, f"{slot:06}")


def _orphans() -> set[int]:
    roots = {pid for pid in children(os.getppid()) if _session(pid) not in (None, os.getsid(0))}
    return roots.union(*map(descendants, roots))


def kill_user(uid: int) -> None:
    """SIGKILL to every process of a user, in one call that no fork can escape. Needs root."""
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
