"""The tier for containers that refuse namespaces: Landlock, seccomp, limits, and under root a user per slot.

It needs no privilege. A run sees that files of the host exist, but reads only granted paths; it can connect to nothing,
not even to itself, and has no shared memory. For runs under the sandbox's own user the kernel needs Landlock's ABI 3
(before, opening a file could truncate it); before ABI 6 such runs may not send signals, not even to themselves.
"""

import errno
import os
import platform
import signal

from agentrl_sandbox.isolation import Host
from agentrl_sandbox.isolation.folder_tier import FolderTier
from agentrl_sandbox.job import Limits
from agentrl_sandbox.kernel import landlock, mounts, profiles, seccomp, syscalls
from agentrl_sandbox.kernel.confine import bound_privileges, drop_privileges

_TRUNCATION, _SIGNALS = 3, 6
_FACTS = ("cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems", "sys/kernel/osrelease")
_KERNEL = ("/sys/devices/system/cpu", "/sys/kernel/mm/transparent_hugepage")
_READ_DEVICES, _DEVICES = ("/dev/random", "/dev/urandom"), ("/dev/null", "/dev/zero", "/dev/full")


class Landlock(FolderTier):
    """Landlock and seccomp in the host's namespaces."""

    name = "landlock"
    forks_python = True
    reusable = True

    def prepare_zygote(self, host: Host) -> None:
        """Prepare the filter and the paths. Raises OSError if the kernel's Landlock is too old."""
        super().prepare_zygote(host)
        profile = profiles.LANDLOCK
        if host.uid is None:
            self.ignores_modes = True
            profile = _as_the_same_user(landlock.abi())
        elif landlock.abi() == 0:
            raise OSError(errno.ENOSYS, f"no Landlock in this kernel ({platform.release()})")
        self.filter = seccomp.program(profile)
        self.readable = [*mounts.sources(host.roots), *(f"/proc/{name}" for name in _FACTS), *_KERNEL, *_READ_DEVICES]

    def enter_slot(self, slot: int, limits: Limits) -> None:
        """Use the slot's work folder."""
        super().enter_slot(slot, limits)
        self.work = self.box
        bound_privileges()

    def reset(self) -> None:
        """Remove the files. A run can leave nothing else: its processes have ended."""
        self.clean_up()

    def variables(self, slot_folder: str) -> dict[str, str]:
        """HOME is the work folder; TMPDIR replaces the host's /tmp."""
        return {"HOME": os.path.join(slot_folder, "box"), "TMPDIR": os.path.join(slot_folder, "tmp")}

    def confine(self, limits: Limits) -> None:
        """Change to the slot's user, restrict paths, then deny dangerous system calls."""
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
