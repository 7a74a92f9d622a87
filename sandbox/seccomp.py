"""Writes seccomp.json, the system calls that the container may make.

    python sandbox/seccomp.py

Everything that is not allowed is refused, as in Docker's own profile, and nothing is allowed that Docker's own does not
allow, but for `ADDED`. Like that profile it withholds what reaches past the container; beyond it, what programs have no
use for. A test asks the kernel, call by call, how the two differ. Programs for 32 bits do not run.
"""

import json
import sys
from pathlib import Path
from typing import Any

KNOWN = """
accept accept4 access acct add_key adjtimex alarm arch_prctl bind bpf brk cachestat capget capset chdir chmod chown
chroot clock_adjtime clock_getres clock_gettime clock_nanosleep clock_settime clone clone3 close close_range connect
copy_file_range creat delete_module dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2
epoll_wait eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fanotify_init
fanotify_mark fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr finit_module flistxattr flock
fork fremovexattr fsconfig fsetxattr fsmount fsopen fspick fstat fstatfs fsync ftruncate futex futex_requeue futex_wait
futex_waitv futex_wake futimesat get_mempolicy get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid
geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid
getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr init_module inotify_add_watch
inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit
io_uring_enter io_uring_register io_uring_setup ioctl ioperm iopl ioprio_get ioprio_set kcmp kexec_file_load kexec_load
keyctl kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen
listmount listxattr llistxattr lremovexattr lseek lsetxattr lsm_get_self_attr lsm_list_modules lsm_set_self_attr lstat
madvise map_shadow_stack mbind membarrier memfd_create memfd_secret migrate_pages mincore mkdir mkdirat mknod mknodat
mlock mlock2 mlockall mmap modify_ldt mount mount_setattr move_mount move_pages mprotect mq_getsetattr mq_notify mq_open
mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall munmap
name_to_handle_at nanosleep newfstatat open open_by_handle_at open_tree openat openat2 pause perf_event_open personality
pidfd_getfd pidfd_open pidfd_send_signal pipe pipe2 pivot_root pkey_alloc pkey_free pkey_mprotect poll ppoll prctl
pread64 preadv preadv2 prlimit64 process_madvise process_mrelease process_vm_readv process_vm_writev pselect6 ptrace
pwrite64 pwritev pwritev2 quotactl quotactl_fd read readahead readlink readlinkat readv reboot recvfrom recvmmsg recvmsg
remap_file_pages removexattr rename renameat renameat2 request_key restart_syscall rmdir rseq rt_sigaction rt_sigpending
rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max
sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop
semtimedop sendfile sendmmsg sendmsg sendto set_mempolicy set_mempolicy_home_node set_robust_list set_thread_area
set_tid_address setdomainname setfsgid setfsuid setgid setgroups sethostname setitimer setns setpgid setpriority
setregid setresgid setresuid setreuid setrlimit setsid setsockopt settimeofday setuid setxattr shmat shmctl shmdt shmget
shutdown sigaltstack signalfd signalfd4 socket socketpair splice stat statfs statmount statx swapoff swapon symlink
symlinkat sync sync_file_range syncfs sysinfo syslog tee tgkill time timer_create timer_delete timer_getoverrun
timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask umount2 uname
unlink unlinkat unshare userfaultfd utime utimensat utimes vfork vhangup vmsplice wait4 waitid write writev
"""
"""All calls of Linux 6.10 on x86-64 and ARM64 that still do something."""

WITHHELD = {
    "make and enter namespaces, and change what a mount shows": (
        "clone clone3 unshare setns mount umount2 pivot_root mount_setattr move_mount open_tree fsopen fsconfig "
        "fsmount fspick statmount listmount chroot sethostname setdomainname"
    ),
    "reach files past the mounts one sees, and count other people's": (
        "name_to_handle_at open_by_handle_at fanotify_init fanotify_mark quotactl quotactl_fd acct"
    ),
    "large doors into the kernel": (
        "bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register modify_ldt memfd_secret "
        "map_shadow_stack lsm_get_self_attr lsm_set_self_attr lsm_list_modules"
    ),
    "look into other processes": (
        "ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd process_madvise process_mrelease"
    ),
    "keyrings have no namespace": "add_key request_key keyctl",
    "not in Docker's profile, and nothing here needs them": "pkey_alloc pkey_free pkey_mprotect",
    "place memory on the host's nodes": (
        "mbind get_mempolicy set_mempolicy set_mempolicy_home_node migrate_pages move_pages"
    ),
    "change the machine": (
        "init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff syslog vhangup iopl "
        "ioperm settimeofday clock_settime clock_adjtime adjtimex"
    ),
    "depends on what is asked, see ASKED": "socket personality",
}
"""Why -> calls that are not allowed as such."""

ADDED = {
    "clone": "CLONE_NEW*: each run gets user, pid, mount, network and IPC namespaces of its own",
    "unshare": "the next run of a process that serves several gets a network and IPC of its own again",
    "mount": "in a run's own mount namespace: its root, put together read-only, its tmpfs and its /proc",
    "mount_setattr": "makes those mounts read-only, with all that is mounted beneath them",
    "pivot_root": "leaves the container's root behind; chroot would leave a way back",
    "umount2": "lets go of the old root, and empties the work folder between two tests of one program",
    "sethostname": "the runs' own host name, in place of the container's",
}
"""What the namespace tier needs beyond Docker's own profile. The kernel lets a process without capabilities make
new namespaces, which these calls then bear on, and no others. The code of a run cannot make any of
them: before it starts, a second filter of the sandbox's own closes them again."""

UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
PLAIN_LINUX, QUERY = 0, 0xFFFFFFFF
ASKED = {
    "socket": (UNIX, INET, INET6, NETLINK),
    "personality": (PLAIN_LINUX, QUERY),
}
"""Call -> values of its first argument that are allowed."""

EPERM, ENOSYS = 1, 38
MACHINES = ("SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64")


def allowed() -> list[str]:
    """Calls that are allowed whatever their arguments."""
    withheld = {call for calls in WITHHELD.values() for call in calls.split()}
    known = set(KNOWN.split())
    assert withheld <= known, f"misspelt: {withheld - known}"
    return sorted(known - withheld)


def profile() -> dict[str, Any]:
    """The profile in Docker's form."""
    rules: list[dict[str, Any]] = [{"names": allowed(), "action": "SCMP_ACT_ALLOW"}]
    rules += [{"names": [call], "action": "SCMP_ACT_ALLOW", "comment": why} for call, why in ADDED.items()]
    for call, values in ASKED.items():
        rules += [{"names": [call], "action": "SCMP_ACT_ALLOW", "args": [first_is(value)]} for value in values]
    # Its flags lie in memory, where no filter reads them; told that it is missing, the C library falls back on clone.
    rules.append({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS})
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        "archMap": [{"architecture": machine, "subArchitectures": []} for machine in MACHINES],
        "syscalls": rules,
    }


def first_is(value: int) -> dict[str, Any]:
    """A condition on the first argument."""
    return {"index": 0, "value": value, "op": "SCMP_CMP_EQ"}


def text() -> str:
    """The file's content."""
    return json.dumps(profile(), indent=2) + "\n"


if __name__ == "__main__":
    target = Path(__file__).with_suffix(".json")
    target.write_text(text())
    sys.stdout.write(f"{target}: {len(allowed())} calls, {len(ADDED)} added\n")
