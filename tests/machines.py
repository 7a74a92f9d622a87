"""Machines made of Linux namespaces: each has a host name, an address, processes and a /tmp/ray of its own; the disk is
one that all share. Needs root."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NAMESPACES = ("--net", "--uts", "--mount", "--pid")
NETWORK = "10.88.0"
BOOT = """
hostname $0 && mount --bind $1 /etc/hosts && mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray && ip link set lo up \
&& ln -sf /proc/mounts /tmp/ray/ready && exec sleep infinity
"""


class Machine:
    """One machine; its processes end with it."""

    def __init__(self, number: int, hosts: Path) -> None:
        self.name, self.address = f"node{number}", f"{NETWORK}.{number}"
        boot = ["sh", "-c", BOOT, self.name, str(hosts)]
        self.unshare = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", "unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", *boot]
        )
        children = Path(f"/proc/{self.unshare.pid}/task/{self.unshare.pid}/children")
        while not (found := children.read_text().split()):
            pass
        self.init = int(found[0])
        while not Path(f"/proc/{self.init}/root/tmp/ray/ready").is_symlink():
            assert self.unshare.poll() is None, f"{self.name} does not start"

    def words(self, *command: str) -> list[str]:
        """The command, to be run on this machine."""
        spaces = [f"{option}=/proc/{self.init}/ns/{option[2:].replace('mount', 'mnt')}" for option in NAMESPACES]
        return ["nsenter", *spaces, f"--wd={os.getcwd()}", *command]

    def sh(self, line: str) -> str:
        """Standard output of a shell's line here."""
        done = subprocess.run(self.words("sh", "-c", line), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    def cut(self) -> None:
        """Drop all packets from and to other machines."""
        self.sh("iptables -A INPUT ! -i lo -j DROP && iptables -A OUTPUT ! -o lo -j DROP")

    def join(self) -> None:
        """Undo `cut`."""
        self.sh("iptables -F")

    def slow(self, rate: str) -> None:
        """Send at `rate` at most: 20mbit."""
        self.sh(f"tc qdisc add dev eth0 root tbf rate {rate} burst 256kb latency 100ms")

    def power_off(self) -> None:
        """End all processes at once; the machine can be used again."""
        self.sh("kill -9 -1")

    def close(self) -> None:
        """End the machine."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.init, signal.SIGKILL)
        self.unshare.wait()


@contextlib.contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """So many machines, connected by a switch."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        hosts = Path(folder) / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{NETWORK}.{i} node{i}" for i in range(1, count + 1))]
        hosts.write_text("\n".join(lines) + "\n")
        made = [Machine(number, hosts) for number in range(count + 1)]
        for machine in made:
            stack.callback(machine.close)
        switch, *nodes = made
        switch.sh("ip link add switch type bridge && ip link set switch up")
        for node in nodes:
            switch.sh(f"ip link add {node.name} type veth peer name eth0 && ip link set {node.name} master switch up")
            subprocess.run(
                ["nsenter", f"--net=/proc/{switch.init}/ns/net", "ip", "link", "set", "eth0", "netns", str(node.init)],
                check=True,
            )
            node.sh(f"ip addr add {node.address}/24 dev eth0 && ip link set eth0 up && ip route add default dev eth0")
        yield nodes


def need_root() -> None:
    """Skip the test where namespaces cannot be made."""
    if os.geteuid() or not all(map(shutil.which, ("setpriv", "unshare", "nsenter", "ip", "iptables"))):
        pytest.skip("needs root, unshare, ip and iptables")
