"""The first tier: namespaces of its own, made by bare system calls, for root and for ordinary users.

The zygote is the first process of a pid namespace and has a root file system that is assembled here: killing it ends
every run. A job supervisor is the first process of a pid namespace inside that one, with its own mounts, network and
IPC. User ids: if the sandbox is root, each slot has one. An ordinary user has only one, so each job supervisor gets
a user namespace of its own, in which the limit on processes counts alone.
"""

import _signal  # type: ignore[import-not-found]
import contextlib
import fcntl
import os
import signal
import socket
import struct

from agentrl_sandbox.isolation import Host, Tier, reap
from agentrl_sandbox.job import Limits
from agentrl_sandbox.kernel import mounts, seccomp, syscalls
from agentrl_sandbox.kernel.confine import ALL_CAPABILITIES, bound_privileges, drop_privileges
from agentrl_sandbox.kernel.profiles import NAMESPACE

RUNNER = 1000
"""User id of the user's process; under root, that of slot 0."""
_ZYGOTE_NAMESPACES = (
    syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWCGROUP | syscalls.CLONE_NEWNET
)  # fmt: skip
_RUN_NAMESPACES = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWNET
_SCRATCH = "/.run"
_FLAGS = mounts.NOSUID | mounts.NODEV
_HIDDEN = "/.hidden"
_COUNTERS = tuple(f"/proc/self/net/{name}" for name in ("dev", "snmp", "snmp6", "netstat"))
_TCP = "4096 65536 212992"
"""Bytes that a connection may queue (least, initial, most): no more than other sockets."""
_MOUNT_POINTS = {"/box": "box", "/tmp": "tmp", "/dev/shm": "shm"}


class Namespace(Tier):
    """Namespaces, a read-only root, no capabilities, denied system calls."""

    name = "namespace"
    forks_python = True
    reusable = True
    disk_is_memory = True
    mounted = False

    def prepare_zygote(self, host: Host) -> None:
        """Continue in a child, the first process of its own namespaces."""
        self.host = host
        self.filter = seccomp.program(NAMESPACE)
        self.flags = _RUN_NAMESPACES if host.uid is not None else _RUN_NAMESPACES | syscalls.CLONE_NEWUSER
        ready, go = os.pipe()
        owner = (os.getuid(), os.getgid())
        pid, _ = syscalls.clone(_ZYGOTE_NAMESPACES)
        if pid:
            self._exit_parent(pid, go, owner)
        os.close(go)
        if not os.read(ready, 1):
            os._exit(1)
        os.close(ready)
        self._build()

    def _exit_parent(self, pid: int, go: int, owner: tuple[int, int]) -> None:
        """In the parent: give the child its ids, then exit."""
        status = 1
        try:
            _map_ids(pid, owner, self.host)
            os.write(go, b".")
            status = 0
        finally:
            os._exit(status)

    def _build(self) -> None:
        mounts_base = "/tmp"
        syscalls.mount("none", "/", "", mounts.RECURSIVE | mounts.PRIVATE)
        paths = mounts.sources(self.host.roots)
        # Handles first: the zygote's former user may reach paths that the namespace's root may not.
        handles = mounts.open_all(paths)
        devices = mounts.open_all([f"/dev/{name}" for name in mounts.DEVICES])
        if self.host.uid is not None:
            os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        mounts.build_root(mounts_base, paths, handles, identity(self.host))
        mounts.make_devices(mounts_base, devices)
        # The run's /tmp would hide an interpreter below /tmp: each run binds it there again.
        self.hidden = [path for path in handles if path.startswith("/tmp/")]
        for number, path in enumerate(self.hidden):
            mounts.bind_read_only(handles[path], f"{mounts_base}{_HIDDEN}/{number}")
        for name in ("proc", "tmp", "box", _SCRATCH[1:]):
            os.makedirs(f"{mounts_base}/{name}", exist_ok=True)
        syscalls.mount("proc", mounts_base + "/proc", "proc", _FLAGS | mounts.NOEXEC)
        for handle in (*handles.values(), *devices.values()):
            os.close(handle)
        socket.sethostname("sandbox")
        mounts.enter_root(mounts_base)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)

    def clone(self) -> tuple[int, int]:
        """Fork a job supervisor as the first process of a pid namespace."""
        return syscalls.clone(self.flags)

    def enter_slot(self, slot: int, limits: Limits) -> None:
        """Set up ids, /proc and loopback.

        RLIMIT_NPROC bounds the processes. The namespace's pid_max cannot: the kernel gives ids below 300 only once.
        """
        self.slot = slot
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # From inside, the first process of a pid namespace gets only the signals that it handles: none.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if self.host.uid is None:
            self.runner = RUNNER
            syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else it may not write to its own /proc/self
            _map_self(RUNNER)
        else:
            self.runner = RUNNER + slot
            syscalls.prctl(syscalls.PR_SET_KEEPCAPS, 1)
            os.setresgid(self.runner, self.runner, self.runner)
            os.setresuid(self.runner, self.runner, self.runner)
            syscalls.set_capabilities(ALL_CAPABILITIES, ALL_CAPABILITIES)
        # Not dumpable: the user's process, which may have the same user id, must not trace this one.
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        syscalls.mount("proc", "/proc", "proc", _FLAGS | mounts.NOEXEC)
        bound_privileges()
        self._start_network()

    def reset(self) -> None:
        """Replace the IPC namespace, restart process ids, and replace the network if it was used."""
        syscalls.unshare(syscalls.CLONE_NEWIPC)
        if self._network_traces() != self.untouched:
            for handle in self.counters:
                os.close(handle)
            syscalls.unshare(syscalls.CLONE_NEWNET)
            self._start_network()
        with contextlib.suppress(OSError):  # not in every kernel; without it a run sees only how many ran before
            _write("/proc/sys/kernel/ns_last_pid", "1")

    def _start_network(self) -> None:
        _loopback_up()
        with contextlib.suppress(OSError):  # before Linux 4.15 networks share these settings
            for name in ("tcp_rmem", "tcp_wmem"):
                _write(f"/proc/sys/net/ipv4/{name}", _TCP)
        self.counters = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in _COUNTERS if os.path.exists(path)]
        self.untouched = self._network_traces()

    def _network_traces(self) -> list[bytes]:
        """All counters of traffic in this network; they include connections that have ended."""
        return [os.pread(handle, 1 << 16, 0) for handle in self.counters]

    def new_work_folder(self, limits: Limits) -> str:
        """Mount one tmpfs for the work folder, /tmp and /dev/shm, which share the limits."""
        if self.mounted:
            for target in (*_MOUNT_POINTS, _SCRATCH):
                mounts.detach(target)
        options = f"mode=755,uid={self.runner},gid={self.runner},size={limits.disk_mb}m,nr_inodes={limits.inodes + 8}"
        syscalls.mount("tmpfs", _SCRATCH, "tmpfs", _FLAGS, options)
        for target, name in _MOUNT_POINTS.items():
            folder = f"{_SCRATCH}/{name}"
            os.mkdir(folder)
            syscalls.mount(folder, target, "", mounts.BIND)
        for number, path in enumerate(self.hidden):
            os.makedirs(path)
            syscalls.mount(f"{_HIDDEN}/{number}", path, "", mounts.BIND | mounts.RECURSIVE)
        self.mounted = True
        return self.work

    def confine(self, limits: Limits) -> None:
        """Drop all capabilities for good, and deny dangerous system calls."""
        _signal.signal(signal.SIGINT, signal.default_int_handler)  # signal.signal is slow: it makes enums
        drop_privileges()
        seccomp.install(self.filter)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)

    def processes(self) -> list[int]:
        """All processes except the job supervisor."""
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]

    def pause(self) -> None:
        """Stop all at once, as in `kill_all`."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue all at once."""
        self._signal_all(signal.SIGCONT)

    def kill_all(self) -> None:
        """Kill all processes in one call, so that none can fork meanwhile."""
        self._signal_all(signal.SIGKILL)
        reap()

    @staticmethod
    def _signal_all(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)


def _map_ids(pid: int, owner: tuple[int, int], host: Host) -> None:
    """Map the ids of a new user namespace: 0 for the zygote; under root, one for each slot."""
    if host.uid is None:
        _write(f"/proc/{pid}/setgroups", "deny")
        for name, number in zip(("uid_map", "gid_map"), owner, strict=True):
            _write(f"/proc/{pid}/{name}", f"0 {number} 1")
        return
    for name in ("uid_map", "gid_map"):
        _write(f"/proc/{pid}/{name}", f"0 {host.uid} 1\n{RUNNER} {host.uid + 1} {host.slots}")


def _map_self(runner: int) -> None:
    _write("/proc/self/setgroups", "deny")
    for name in ("uid_map", "gid_map"):
        _write(f"/proc/self/{name}", f"{runner} 0 1")


def identity(host: Host) -> dict[str, str]:
    """The files of /etc with users, groups and hosts."""
    slots = range(host.slots if host.uid is not None else 1)
    users = "".join(f"sandbox:x:{RUNNER + n}:{RUNNER + n}::/box:/bin/sh\n" for n in slots)
    groups = "".join(f"sandbox:x:{RUNNER + n}:\n" for n in slots)
    return {
        "/etc/passwd": f"root:x:0:0::/:/bin/sh\n{users}nobody:x:65534:65534::/:/bin/false\n",
        "/etc/group": f"root:x:0:\n{groups}nogroup:x:65534:\n",
        "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: up, running


def _write(path: str, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)
