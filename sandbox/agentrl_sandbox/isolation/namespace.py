"""The first tier: own namespaces, made by bare system calls, for root and for ordinary users.

The server is the first process of a pid namespace, in a user namespace where it is root and a mount namespace whose
root is put together here: killing it ends every run. A warden is the first process of a pid namespace inside that,
with its own mounts, network and IPC. Ids: where the host's root serves, each slot has a user id of its own; an
ordinary user has but one, so each warden gets a user namespace of its own, which makes the process limit count alone.
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
"""Id of the user's process; under root, of slot 0's."""
_OWN_WORLD = (
    syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWCGROUP | syscalls.CLONE_NEWNET
)  # fmt: skip
_OWN_RUN = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWNET
_SCRATCH = "/.run"
_FLAGS = mounts.NOSUID | mounts.NODEV
_HELD = "/.held"
_COUNTERS = tuple(f"/proc/self/net/{name}" for name in ("dev", "snmp", "snmp6", "netstat"))
_TCP = "4096 65536 212992"
"""Bytes that a connection may queue, least, first and most: no more than other sockets."""
_PLACES = {"/box": "box", "/tmp": "tmp", "/dev/shm": "shm"}


class Namespace(Tier):
    """Namespaces, a read-only root, no capabilities, denied system calls."""

    name = "namespace"
    forks_python = True
    renews = True
    disk_is_memory = True
    mounted = False

    def settle(self, host: Host) -> None:
        """Goes on in a child: the first process of its own world."""
        self.host = host
        self.filter = seccomp.program(NAMESPACE)
        self.flags = _OWN_RUN if host.uid is not None else _OWN_RUN | syscalls.CLONE_NEWUSER
        ready, go = os.pipe()
        owner = (os.getuid(), os.getgid())
        pid, _ = syscalls.clone(_OWN_WORLD)
        if pid:
            self._leave_behind(pid, go, owner)
        os.close(go)
        if not os.read(ready, 1):
            os._exit(1)
        os.close(ready)
        self._build()

    def _leave_behind(self, pid: int, go: int, owner: tuple[int, int]) -> None:
        """In the parent: give the child its ids, then be gone."""
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
        # Handles first: whoever the server was may walk where the namespace's root may not.
        handles = mounts.open_all(paths)
        devices = mounts.open_all([f"/dev/{name}" for name in mounts.DEVICES])
        if self.host.uid is not None:
            os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        mounts.build_root(mounts_base, paths, handles, identity(self.host))
        mounts.make_devices(mounts_base, devices)
        # An interpreter below /tmp would be hidden by the run's own /tmp: it is bound there anew for each run.
        self.hidden = [path for path in handles if path.startswith("/tmp/")]
        for number, path in enumerate(self.hidden):
            mounts.bind_read_only(handles[path], f"{mounts_base}{_HELD}/{number}")
        for name in ("proc", "tmp", "box", _SCRATCH[1:]):
            os.makedirs(f"{mounts_base}/{name}", exist_ok=True)
        syscalls.mount("proc", mounts_base + "/proc", "proc", _FLAGS | mounts.NOEXEC)
        for handle in (*handles.values(), *devices.values()):
            os.close(handle)
        socket.sethostname("sandbox")
        mounts.enter_root(mounts_base)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)

    def clone(self) -> tuple[int, int]:
        """The warden is the first process of its own pid namespace."""
        return syscalls.clone(self.flags)

    def enter(self, slot: int, limits: Limits) -> None:
        """Own ids, /proc, loopback.

        RLIMIT_NPROC bounds the processes. The namespace's pid_max cannot: the kernel gives ids below 300 only once.
        """
        self.slot = slot
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # The first process of a pid namespace gets from inside only the signals that it handles: so none.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if self.host.uid is None:
            self.runner = RUNNER
            syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else its own /proc/self is not its own to write
            _map_self(RUNNER)
        else:
            self.runner = RUNNER + slot
            syscalls.prctl(syscalls.PR_SET_KEEPCAPS, 1)
            os.setresgid(self.runner, self.runner, self.runner)
            os.setresuid(self.runner, self.runner, self.runner)
            syscalls.set_capabilities(ALL_CAPABILITIES, ALL_CAPABILITIES)
        # Not dumpable: the user's process must not reach into this one, which may bear the same id.
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        syscalls.mount("proc", "/proc", "proc", _FLAGS | mounts.NOEXEC)
        bound_privileges()
        self._start_network()

    def renew(self) -> None:
        """New IPC, process ids from the start again, and a new network if the old one was used at all."""
        syscalls.unshare(syscalls.CLONE_NEWIPC)
        if self._network_traces() != self.untouched:
            for handle in self.counters:
                os.close(handle)
            syscalls.unshare(syscalls.CLONE_NEWNET)
            self._start_network()
        with contextlib.suppress(OSError):  # not in every kernel, and it tells only how many ran before
            _write("/proc/sys/kernel/ns_last_pid", "1")

    def _start_network(self) -> None:
        _loopback_up()
        with contextlib.suppress(OSError):  # before Linux 4.15 a network has no such settings of its own
            for name in ("tcp_rmem", "tcp_wmem"):
                _write(f"/proc/sys/net/ipv4/{name}", _TCP)
        self.counters = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in _COUNTERS if os.path.exists(path)]
        self.untouched = self._network_traces()

    def _network_traces(self) -> list[bytes]:
        """All that tells of traffic in this network, past or present: a connection that has ended still counts here."""
        return [os.pread(handle, 1 << 16, 0) for handle in self.counters]

    def fresh(self, limits: Limits) -> str:
        """One tmpfs holds the work folder, /tmp and /dev/shm, so that they share the limits."""
        if self.mounted:
            for place in (*_PLACES, _SCRATCH):
                mounts.detach(place)
        options = f"mode=755,uid={self.runner},gid={self.runner},size={limits.disk_mb}m,nr_inodes={limits.inodes + 8}"
        syscalls.mount("tmpfs", _SCRATCH, "tmpfs", _FLAGS, options)
        for place, name in _PLACES.items():
            folder = f"{_SCRATCH}/{name}"
            os.mkdir(folder)
            syscalls.mount(folder, place, "", mounts.BIND)
        for number, path in enumerate(self.hidden):
            os.makedirs(path)
            syscalls.mount(f"{_HELD}/{number}", path, "", mounts.BIND | mounts.RECURSIVE)
        self.mounted = True
        return self.work

    def confine(self, limits: Limits) -> None:
        """No capability, no way to any, no dangerous system call."""
        _signal.signal(signal.SIGINT, signal.default_int_handler)  # the other one is slow: it makes enums
        drop_privileges()
        seccomp.install(self.filter)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)

    def processes(self) -> list[int]:
        """All but the warden."""
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]

    def pause(self) -> None:
        """One call for all, as in `end`."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """As `pause`."""
        self._signal_all(signal.SIGCONT)

    def end(self) -> None:
        """One call kills all at once: nobody can fork meanwhile."""
        self._signal_all(signal.SIGKILL)
        reap()

    @staticmethod
    def _signal_all(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)


def _map_ids(pid: int, owner: tuple[int, int], host: Host) -> None:
    """The ids of a new user namespace: 0 for its server; under root, one more for each slot."""
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
    """/etc as far as it tells who one is."""
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
