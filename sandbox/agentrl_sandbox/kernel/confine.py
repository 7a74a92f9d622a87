"""What every tier does to the user's process: limits on resources, no privileges, fewer system calls."""

import os
import resource

from agentrl_sandbox.job import Limits
from agentrl_sandbox.kernel import syscalls

ALL_CAPABILITIES = (1 << 41) - 1
_MIB = 1 << 20
_DEEP = 64 * _MIB
"""A program's stack, for recursion is what small programs use memory for, and with it that of each thread."""
_NO_CORE = 1
"""Bytes. 0 would keep dumps from files only, and let a core_pattern that is a pipe have them: core(5)."""
_SIGNALS = 1024
"""Queued signals and timers: kernel memory, of which the host allows each user so much."""
NICE = 5
"""The wardens, the server and the trainer go first, however many processes a run has."""


def limit_resources(limits: Limits, cpu: float, others: int) -> None:
    """rlimits, hard ones. `cpu` in seconds; `others`: processes of the same user that do not count.

    Memory here is a process's private one, with room for threads' stacks.
    The warden watches the real use of memory and CPU of all processes together; these stop a single one sooner.
    """
    seconds = int(cpu) + 2
    data = limits.memory_mb * _MIB + limits.processes * _DEEP
    os.nice(NICE)
    for kind, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_DATA, data),
        (resource.RLIMIT_FSIZE, limits.disk_mb * _MIB),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_NPROC, limits.processes + others),
        (resource.RLIMIT_CORE, _NO_CORE),
        (resource.RLIMIT_MEMLOCK, _MIB),
        (resource.RLIMIT_SIGPENDING, _SIGNALS),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_RTPRIO, 0),
    ):
        _lower(kind, value, value)
    _lower(resource.RLIMIT_STACK, _DEEP, max(_DEEP, limits.memory_mb * _MIB))


def _lower(kind: int, soft: int, hard: int) -> None:
    highest = resource.getrlimit(kind)[1]
    if highest != resource.RLIM_INFINITY:
        soft, hard = min(soft, highest), min(hard, highest)
    resource.setrlimit(kind, (soft, hard))


def bound_privileges() -> None:
    """In a warden, which keeps its own: no capabilities are to be had by exec, and no way back."""
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    for number in range(ALL_CAPABILITIES.bit_length()):
        try:
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, number)
        except OSError:
            break  # past the last one this kernel knows, or never had the right


def drop_privileges() -> None:
    """No capabilities at all."""
    syscalls.set_capabilities(0, 0)
