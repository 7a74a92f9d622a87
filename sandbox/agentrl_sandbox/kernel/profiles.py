"""The seccomp profiles: system calls that confined programs may not make, with the reason for each.

Deny-lists: the kernel's own permission checks hold for the rest, and programs in any language must keep working.
Each denied call was an escape in some kernel, or uses memory or state that no limit counts, or affects other processes.
"""

import errno

from agentrl_sandbox.kernel.seccomp import Argument, Profile, Rule

_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_OWN = (0,)  # a pid argument that means the caller itself


def _core_limit() -> tuple[Rule, ...]:
    """RLIMIT_CORE cannot be changed (see confine). Reading it is allowed: a null pointer, both halves."""
    why = "0 instead of 1 hands memory to the host's handler of core dumps, where core_pattern is a pipe"
    core, null = 4, (0,)
    halves = (Argument(2, null, inside=False, upper=upper) for upper in (False, True))
    writes = (Rule(("prlimit64",), why, 0, (Argument(1, (core,)), half)) for half in halves)
    return (Rule(("setrlimit",), why, 0, (Argument(0, (core,)),)), *writes)


_KERNEL = (
    Rule(("unshare", "setns"), "a namespace of its own would bring capabilities back"),
    Rule(("clone",), "as unshare", tests=(Argument(0, (0,), mask=_NEW_NAMESPACES, inside=False),)),
    Rule(("clone3",), "its flags lie in memory, out of a filter's sight; libc falls back to clone", errno.ENOSYS),
    Rule(("mount", "umount2", "pivot_root", "chroot", "swapon", "swapoff"), "the view of the file system is fixed"),
    Rule(("move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"), "as mount"),
    Rule(("statmount", "listmount"), "describe the host's mounts", errno.ENOSYS),
    Rule(("open_by_handle_at", "name_to_handle_at", "fanotify_init"), "reach files past the paths that were granted"),
    Rule(("bpf", "perf_event_open", "userfaultfd"), "read the kernel, or hold it still to win races against it"),
    Rule(("io_uring_setup", "io_uring_enter", "io_uring_register"), "runs calls past this filter", errno.ENOSYS),
    Rule(
        ("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot"), "change the host"
    ),
    Rule(("settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "acct", "quotactl", "quotactl_fd"), "as above"),
    Rule(
        ("iopl", "ioperm", "modify_ldt", "uselib", "ustat", "sysfs", "_sysctl", "lookup_dcookie"), "old, rarely tested"
    ),
    Rule(("syslog", "vhangup"), "the kernel's log and the terminal are the host's"),
    Rule(("add_key", "request_key", "keyctl"), "keyrings have no namespace and outlive the run"),
    Rule(("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd"), "look into other processes"),
    Rule(("process_madvise", "process_mrelease", "migrate_pages", "move_pages"), "as ptrace"),
    Rule(("set_mempolicy", "set_mempolicy_home_node", "mbind"), "pin memory on the host's nodes"),
    Rule(("memfd_create", "memfd_secret"), "memory that neither RLIMIT_DATA nor a folder's size counts", errno.ENOSYS),
    Rule(
        ("shmget", "shmat", "shmctl"), "memory that stays when nobody maps it, where no watchdog sees it", errno.ENOSYS
    ),
    Rule(
        ("semget", "semop", "semctl", "semtimedop", "msgget", "msgsnd", "msgrcv", "msgctl"), "as shmget", errno.ENOSYS
    ),
    Rule(("mq_open", "mq_unlink"), "as shmget", errno.ENOSYS),
    Rule(("ioctl",), "TIOCSTI and TIOCLINUX type into the terminal", tests=(Argument(1, (0x5412, 0x541C)),)),
    Rule(("personality",), "switches off what makes attacks hard", tests=(Argument(0, (0, 0xFFFFFFFF), inside=False),)),
    Rule(("prlimit64",), "starves the process that watches the run", tests=(Argument(0, _OWN, inside=False),)),
    Rule(("prctl",), "PR_SET_SECCOMP: filters are kernel memory nobody counts", errno.EINVAL, (Argument(0, (22,)),)),
    *_core_limit(),
    Rule(
        ("inotify_init", "inotify_init1", "inotify_add_watch"),
        "tells who uses the host's files, read-only or not, and names that cannot be read; libraries then poll",
        errno.ENOSYS,
    ),
    Rule(
        ("fcntl",),
        "F_SETLEASE delays the host's own opening of a file, F_NOTIFY is the older inotify; F_SETPIPE_SZ makes pipes "
        "hold more, by what no limit counts: the kernel, too, refuses that at times",
        tests=(Argument(1, (1024, 1026, 1031)),),
    ),
    Rule(
        ("setsockopt",),
        "SO_SNDBUF, SO_RCVBUF and their *FORCE: as F_SETPIPE_SZ; the kernel, too, gives less than was asked for",
        0,
        (Argument(1, (1,)), Argument(2, (7, 8, 32, 33))),
    ),
    Rule(("sync", "syncfs"), "wait for all the host's disks, where no signal reaches; a run has nothing on them", 0),
    Rule(("io_setup",), "the host has so many of them for all its programs; libraries then use threads", errno.ENOSYS),
    Rule(("seccomp",), "as PR_SET_SECCOMP", errno.ENOSYS),
    Rule(("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"), "as PR_SET_SECCOMP", errno.ENOSYS),
)

_OWN_NETWORK = (
    Rule(
        ("socket", "socketpair"),
        "AF_VSOCK, AF_ALG, AF_PACKET and the like reach past a network namespace or into seldom tested code",
        errno.EAFNOSUPPORT,
        (Argument(0, (_UNIX, _INET, _INET6, _NETLINK), inside=False),),
    ),
    Rule(
        ("socket",),
        "of netlink only NETLINK_ROUTE, which getaddrinfo asks for addresses",
        errno.EPROTONOSUPPORT,
        (Argument(0, (_NETLINK,)), Argument(2, (0,), inside=False)),
    ),
)

_HOST_NETWORK = (
    Rule(("socket",), "the network is the host's", errno.EAFNOSUPPORT, (Argument(0, (_UNIX,), inside=False),)),
    Rule(
        ("socket", "socketpair"),
        "a datagram socket sends to any address, pair or not",
        errno.EAFNOSUPPORT,
        (Argument(1, (1, 5), mask=0xF, inside=False),),
    ),
    Rule(("connect",), "a socket's path is no path to Landlock: services of the host would answer", errno.EACCES),
)

_OTHER_PROCESSES = (
    Rule(
        ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"),
        "slows the process that watches the run",
        tests=(Argument(0, _OWN, inside=False),),
    ),
    Rule(("setpriority", "ioprio_set"), "as above, by pid", tests=(Argument(1, _OWN, inside=False),)),
    Rule(("setpriority",), "PRIO_USER: all of the user", tests=(Argument(0, (2,)),)),
    Rule(("ioprio_set",), "IOPRIO_WHO_USER: all of the user", tests=(Argument(0, (3,)),)),
)

HOST_DISK = (Rule(("fallocate",), "takes more of the disk between two looks than writing can", errno.EOPNOTSUPP),)
"""For runs whose files lie on the host's disk. The C library's posix_fallocate then writes."""

NAMESPACE = Profile("namespace", _KERNEL + _OTHER_PROCESSES + _OWN_NETWORK)
"""For runs whose processes, network and file system are their own."""

LANDLOCK = Profile("landlock", _KERNEL + _OTHER_PROCESSES + _HOST_NETWORK + HOST_DISK)
"""For runs that share the host's namespaces under a user of their own."""

SHARED_USER = (
    Rule(("chmod", "fchmod", "fchmodat", "fchmodat2"), "Landlock lets the owner of a file change its mode anywhere", 0),
    Rule(("chown", "lchown", "fchown", "fchownat"), "as chmod", 0),
    Rule(("utime", "utimes", "utimensat", "futimesat"), "as chmod", 0),
    Rule(
        ("setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr"),
        "as chmod",
        errno.EOPNOTSUPP,
    ),
    Rule(("ioctl",), "FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR: as chmod", tests=(Argument(1, (0x40086602, 0x401C5820)),)),
)
"""For runs under the user who started them: what that user may do to own files and Landlock does not see.

Claimed to have worked rather than refused: compilers and copies set modes as their last step.
"""

NO_SIGNALS = (
    Rule(
        ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"),
        "before ABI 6 Landlock does not keep signals inside the run",
    ),
    Rule(("fcntl",), "F_SETOWN, F_SETSIG, F_SETOWN_EX: signals by way of a file", tests=(Argument(1, (8, 10, 15)),)),
    Rule(("ioctl",), "FIOSETOWN, SIOCSPGRP: as F_SETOWN", tests=(Argument(1, (0x8901, 0x8902)),)),
)
"""For runs under the user who started them where Landlock's ABI is below 6."""
