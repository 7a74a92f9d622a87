"""Limits and privileges of the user's process, common to all tiers."""

import os
import resource

from agentrl_sandbox.job import Limits
from agentrl_sandbox.kernel import syscalls

ALL_CAPABILITIES = (1 << 41) - 1
_MIB = 1 << 20
_DEEP = 64 * _MIB
"""Stack of a program and of each thread: small programs use memory for recursion."""
_NO_CORE = 1
"""Bytes. With 0 a core_pattern that is a pipe would still get dumps: core(5)."""
_SIGNALS = 1024
"""Queued signals and timers: kernel memory that the host limits per user."""
NICE = 5
"""Job supervisors, zygotes and a trainer have priority over the processes of runs."""


def limit_resources(limits: Limits, cpu: float, others: int) -> None:
    """Set hard rlimits. `cpu` in seconds; `others`: processes of the same user that do not count.

    The memory limit is for a process's private memory, with room for threads' stacks. The job supervisor polls memory
    and CPU of all processes together; rlimits stop a single process sooner.
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
    """In a job supervisor, which keeps its capabilities: exec can give none, for good."""
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    for number in range(ALL_CAPABILITIES.bit_length()):
        try:
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, number)
        except OSError:
            break  # past the last one of this kernel, or not allowed


def drop_privileges() -> None:
    """Drop all capabilities."""
    syscalls.set_capabilities(0, 0)
