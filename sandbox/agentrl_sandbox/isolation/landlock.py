"""The tier for containers that refuse namespaces: Landlock, seccomp, limits, and where it can a user a slot.

It needs no privilege. A run sees that files of the host exist, but reads only what is granted; it can connect to
nothing, not even to itself, and has no shared memory. As the server's own user the kernel must know Landlock's ABI 3
(before, files could be truncated by opening them); before ABI 6 such runs may not send signals, not even to themselves.
"""

import errno
import os
import platform
import signal

from agentrl_sandbox.isolation import Host
from agentrl_sandbox.isolation.foldered import Foldered
from agentrl_sandbox.job import Limits
from agentrl_sandbox.kernel import landlock, mounts, profiles, seccomp, syscalls
from agentrl_sandbox.kernel.confine import bound_privileges, drop_privileges

_TRUNCATION, _SIGNALS = 3, 6
_FACTS = ("cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems", "sys/kernel/osrelease")
_KERNEL = ("/sys/devices/system/cpu", "/sys/kernel/mm/transparent_hugepage")
_READ_DEVICES, _DEVICES = ("/dev/random", "/dev/urandom"), ("/dev/null", "/dev/zero", "/dev/full")


class Landlock(Foldered):
    """Landlock and seccomp in the host's namespaces."""

    name = "landlock"
    forks_python = True
    renews = True

    def settle(self, host: Host) -> None:
        """Raises OSError where the kernel's Landlock is too old."""
        super().settle(host)
        profile = profiles.LANDLOCK
        if host.uid is None:
            self.fakes_modes = True
            profile = _as_the_same_user(landlock.abi())
        elif landlock.abi() == 0:
            raise OSError(errno.ENOSYS, f"no Landlock in this kernel ({platform.release()})")
        self.filter = seccomp.program(profile)
        self.readable = [*mounts.sources(host.roots), *(f"/proc/{name}" for name in _FACTS), *_KERNEL, *_READ_DEVICES]

    def enter(self, slot: int, limits: Limits) -> None:
        """The work folder lies at a place of the slot's own."""
        super().enter(slot, limits)
        self.work = self.box
        bound_privileges()

    def renew(self) -> None:
        """Its processes are gone, its files go: nothing else of a run stays, for it could make nothing else."""
        self.leave()

    def variables(self, place: str) -> dict[str, str]:
        """/tmp is the host's; the work folder is also home."""
        return {"HOME": os.path.join(place, "box"), "TMPDIR": os.path.join(place, "tmp")}

    def confine(self, limits: Limits) -> None:
        """The slot's user, then no path but the granted ones, then no dangerous system call."""
        self.become_runner()
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        landlock.restrict([*self.readable, f"/proc/{os.getpid()}"], [self.box, self.tmp, *_DEVICES])
        drop_privileges()
        seccomp.install(self.filter)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)


def _as_the_same_user(abi: int) -> seccomp.Profile:
    if abi < _TRUNCATION:
        known = f"Landlock ABI {abi}" if abi else "no Landlock"
        raise OSError(errno.ENOSYS, f"{known} in this kernel ({platform.release()}); {_TRUNCATION} is the least")
    profile = profiles.LANDLOCK + profiles.SHARED_USER
    return profile if abi >= _SIGNALS else profile + profiles.NO_SIGNALS
