"""What surrounds the sandbox during the attacks: secrets, open doors and a process, all of the pool's own user."""

import os
import resource
import secrets
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[3]


class Scene:
    """Baits. `damage` tells what was done to them."""

    def __init__(self) -> None:
        self.secret = secrets.token_hex(16)
        self.mark = secrets.token_hex(4)
        os.environ["AGENTRL_ATTACK_SECRET"] = self.secret
        self.space = tempfile.TemporaryDirectory(prefix="agentrl-scene-")
        self.folder = Path(self.space.name)
        self.file = self.folder / "secret"
        self.file.write_text(self.secret)
        abstract = f"agentrl-scene-{self.mark}"
        self.listeners = [
            _bound(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            _bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            _bound(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{abstract}"),
            _bound(socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{abstract}-datagrams"),
            _bound(socket.AF_UNIX, socket.SOCK_STREAM, str(self.folder / "socket")),
            _bound(socket.AF_UNIX, socket.SOCK_DGRAM, str(self.folder / "datagrams")),
        ]
        # Everybody may do everything here, so that nothing but the sandbox stands in the way.
        for path in (self.folder, self.file, self.folder / "socket", self.folder / "datagrams"):
            path.chmod(0o777)
        self.decoy = subprocess.Popen(
            [f"cat-{self.secret}"], executable=shutil.which("cat"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        self.before = self._looks()
        self.values = {
            "SECRET": str(self.file),
            "FOLDER": str(self.folder),
            "DECOY": str(self.decoy.pid),
            "POOL": str(os.getpid()),
            "ABSTRACT": abstract,
            "MARK": self.mark,
            "REPO": str(REPO),
            "HOME": str(Path.home()),
            "PORT": str(self.listeners[0].getsockname()[1]),
            "UDP": str(self.listeners[1].getsockname()[1]),
        }

    def damage(self) -> list[str]:
        """What happened to the baits since the scene was set, in words."""
        try:
            now = self._looks()
        except OSError as error:
            return [f"a bait is gone: {error}"]
        found = [f"{name} was {was!r}, is {now[name]!r}" for name, was in self.before.items() if was != now[name]]
        reached = [number for number, listener in enumerate(self.listeners) if _reached(listener)]
        return found + [f"socket {number} of the scene was reached" for number in reached]

    def _looks(self) -> dict[str, Any]:
        about, folder, pid = self.file.stat(), self.folder.stat(), self.decoy.pid
        return {
            "the secret": (about.st_mode, about.st_uid, about.st_mtime, about.st_nlink, self.file.read_text()),
            "its folder": (folder.st_mode, folder.st_uid, folder.st_mtime, sorted(os.listdir(self.folder))),
            "the decoy": (self.decoy.poll(), _state(pid)),
            "its limits": [resource.prlimit(pid, kind) for kind in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE)],
            "its priority": (
                os.getpriority(os.PRIO_PROCESS, pid),
                os.sched_getaffinity(pid),
                os.sched_getscheduler(pid),
            ),
            "the pool's limits": [resource.getrlimit(kind) for kind in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE)],
            "the pool's priority": (
                os.getpriority(os.PRIO_PROCESS, 0),
                os.sched_getaffinity(0),
                os.sched_getscheduler(0),
            ),
        }

    def close(self) -> None:
        """Takes the scene down."""
        self.decoy.communicate()
        for listener in self.listeners:
            listener.close()
        self.space.cleanup()


def linger() -> str:
    """An argument for sleep by which its processes are known."""
    return f"86400.{secrets.randbelow(10**12):012}"


def lingering(argument: str) -> list[tuple[str, bytes]]:
    """Processes of the host that were started with `argument`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", pid, "cmdline").read_bytes()
        except OSError:
            continue
        if argument.encode() in words:
            found.append((pid, words))
    return found


def _bound(family: int, kind: int, address: Any) -> socket.socket:
    bound = socket.socket(family, kind)
    bound.bind(address)
    if kind == socket.SOCK_STREAM:
        bound.listen()
    bound.setblocking(False)
    return bound


def _reached(bound: socket.socket) -> bool:
    try:
        if bound.type == socket.SOCK_STREAM:
            bound.accept()[0].close()
        else:
            bound.recv(1)
    except BlockingIOError:
        return False
    return True


def _state(pid: int) -> str:
    """Stopped or not."""
    state = Path("/proc", str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    return "T" if state in "tT" else "alive" if state in "RSD" else state
