"""What Docker's default settings refuse a container, put on this process: its seccomp profile and capabilities."""

import ctypes
import errno
import os

from agentrl_sandbox.kernel import seccomp, syscalls
from agentrl_sandbox.kernel.seccomp import Argument, Profile, Rule

_NAMESPACES = 0x7E020000
DEFAULT = Profile(
    "docker",
    (
        Rule(
            ("unshare", "setns", "mount", "umount2", "pivot_root", "move_mount", "open_tree", "mount_setattr"),
            "CAP_SYS_ADMIN",
        ),
        Rule(
            ("fsopen", "fsmount", "fsconfig", "fspick", "bpf", "perf_event_open", "quotactl", "fanotify_init"),
            "CAP_SYS_ADMIN",
        ),
        Rule(("clone",), "no new namespaces", tests=(Argument(0, (0,), mask=_NAMESPACES, inside=False),)),
        Rule(("clone3",), "its flags cannot be seen", errno.ENOSYS),
        Rule(("keyctl", "add_key", "request_key", "userfaultfd", "kcmp", "io_uring_setup"), "not on the list"),
    ),
)
CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
"""chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw sys_chroot mknod audit_write
setfcap"""


def enter() -> None:
    """This process, and all it starts, are in such a container from now on."""
    if os.getuid() == 0:
        for number in set(range(41)) - set(CAPABILITIES):
            try:
                syscalls.prctl(syscalls.PR_CAPBSET_DROP, number)
            except OSError:
                break
        kept = sum(1 << number for number in CAPABILITIES)
        syscalls.set_capabilities(kept, kept)
    seccomp.install(seccomp.program(DEFAULT))


def refuses_namespaces() -> bool:
    """Whether the kernel now says no."""
    return ctypes.CDLL(None).unshare(0x10000000) != 0
