"""The tier for hosts whose AppArmor lets only bubblewrap make user namespaces.

bwrap starts with the run's environment and nothing else: its first process inside keeps what it was given, and any
process of the run may read that. The work folder is the host's, so the warden bounds it; /dev/shm is a tmpfs.
"""

import errno
import os
from collections.abc import Sequence

from agentrl_sandbox.isolation import Host
from agentrl_sandbox.isolation.foldered import Foldered
from agentrl_sandbox.isolation.namespace import RUNNER, identity
from agentrl_sandbox.job import Limits
from agentrl_sandbox.kernel import mounts, profiles, seccomp

_FILTER = 100
"""Descriptor by which bwrap gets its filter."""
_OWN_PROCESSES = 2
_SIGNALLED = 128


class Bwrap(Foldered):
    """Namespaces made by bubblewrap."""

    name = "bwrap"

    def settle(self, host: Host) -> None:
        """Raises OSError where there is no bwrap."""
        super().settle(host)
        if host.bwrap is None:
            raise FileNotFoundError(errno.ENOENT, "no bwrap on PATH")
        self.program = host.bwrap
        self.filter = os.path.join(host.folder, "filter")
        with open(self.filter, "wb") as file:
            file.write(seccomp.program(profiles.NAMESPACE + profiles.HOST_DISK))
        self.view = [*self._system(), *self._identity()]
        # What lies below /tmp would be hidden by the run's own /tmp, so it comes after that.
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
        """bwrap's words, most of them the same for all runs."""
        own = ("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session")
        rights = ("--cap-drop", "ALL", "--uid", str(RUNNER), "--gid", str(RUNNER), "--hostname", "sandbox")
        devices = ("--dev", "/dev", "--proc", "/proc", "--size", str(self.shared_memory), "--tmpfs", "/dev/shm")
        folders = ("--bind", self.box, "/box", "--bind", self.tmp, "/tmp", "--chdir", "/box")
        closed = ("--remount-ro", "/", "--seccomp", str(_FILTER))
        return [self.program, *own, *rights, *self.view, *devices, *folders, *self.late, *closed, "--", *argv]

    def enter(self, slot: int, limits: Limits) -> None:
        """The tmpfs gets the size that the files may have."""
        super().enter(slot, limits)
        self.shared_memory = limits.disk_mb << 20

    def others(self) -> int:
        """bwrap's own processes do not count."""
        return super().others() + _OWN_PROCESSES

    def confine(self, limits: Limits) -> None:
        """bwrap does it; here it gets the slot's user and the filter."""
        handle = os.open(self.filter, os.O_RDONLY)
        os.dup2(handle, _FILTER, inheritable=True)
        self.become_runner()

    def exit_code(self, code: int) -> int:
        """bwrap tells of a signal as shells do."""
        return _SIGNALLED - code if _SIGNALLED < code <= _SIGNALLED + 64 else code
