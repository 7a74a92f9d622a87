"""The tier for hosts whose AppArmor allows only bubblewrap to make user namespaces.

bwrap starts with the run's environment and nothing else: its first process inside keeps that environment, and any
process of the run may read it. The work folder is the host's, so the job supervisor bounds it; /dev/shm is a tmpfs.
"""

import errno
import os
from collections.abc import Sequence

from agentrl_sandbox.isolation import Host
from agentrl_sandbox.isolation.folder_tier import FolderTier
from agentrl_sandbox.isolation.namespace import RUNNER, identity
from agentrl_sandbox.job import Limits
from agentrl_sandbox.kernel import mounts, profiles, seccomp

_FILTER = 100
"""Descriptor through which bwrap reads its filter."""
_OWN_PROCESSES = 2
_SIGNALLED = 128


class Bwrap(FolderTier):
    """Namespaces made by bubblewrap."""

    name = "bwrap"

    def prepare_zygote(self, host: Host) -> None:
        """Prepare the arguments. Raises OSError without bwrap."""
        super().prepare_zygote(host)
        if host.bwrap is None:
            raise FileNotFoundError(errno.ENOENT, "no bwrap on PATH")
        self.program = host.bwrap
        self.filter = os.path.join(host.folder, "filter")
        with open(self.filter, "wb") as file:
            file.write(seccomp.program(profiles.NAMESPACE + profiles.HOST_DISK))
        self.view = [*self._system(), *self._identity()]
        # The run's /tmp would hide folders below /tmp, so they are mounted after it.
        below = [path for path in mounts.sources(host.roots) if path.startswith("/tmp/") and self.reaches(path)]
        self.late = [word for path in below for word in ("--ro-bind", path, path)]

    def _system(self) -> list[str]:
        words = []
        for path in filter(self.reaches, mounts.sources(self.host.roots)):
            words += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
        return words

    def _identity(self) -> list[str]:
        words = []
        for path, text in identity(self.host).items():
            copy = os.path.join(self.host.folder, os.path.basename(path))
            with open(copy, "w", encoding="utf-8") as file:
                file.write(text)
            words += ["--ro-bind", copy, path]
        return words

    def command(self, argv: Sequence[str]) -> Sequence[str]:
        """bwrap's command line."""
        own = ("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session")
        rights = ("--cap-drop", "ALL", "--uid", str(RUNNER), "--gid", str(RUNNER), "--hostname", "sandbox")
        devices = ("--dev", "/dev", "--proc", "/proc", "--size", str(self.shared_memory), "--tmpfs", "/dev/shm")
        folders = ("--bind", self.box, "/box", "--bind", self.tmp, "/tmp", "--chdir", "/box")
        closed = ("--remount-ro", "/", "--seccomp", str(_FILTER))
        return [self.program, *own, *rights, *self.view, *devices, *folders, *self.late, *closed, "--", *argv]

    def enter_slot(self, slot: int, limits: Limits) -> None:
        """Set the size of the tmpfs to the limit of the files."""
        super().enter_slot(slot, limits)
        self.shared_memory = limits.disk_mb << 20

    def other_processes(self) -> int:
        """bwrap's processes do not count."""
        return super().other_processes() + _OWN_PROCESSES

    def confine(self, limits: Limits) -> None:
        """Give bwrap, which confines the run, the slot's user and the filter."""
        handle = os.open(self.filter, os.O_RDONLY)
        os.dup2(handle, _FILTER, inheritable=True)
        self.become_runner()

    def exit_code(self, code: int) -> int:
        """The signal, which bwrap reports as 128 + N, as shells do."""
        return _SIGNALLED - code if _SIGNALLED < code <= _SIGNALLED + 64 else code
