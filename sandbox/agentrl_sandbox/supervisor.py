"""The process that owns servers and slots: started by exec in a clean environment, one thread, an event loop.

It sees no code and no data. The pool hands it one end of a socket per job, which goes on to a server and from there to
the job's warden. It ends when the pool does, and then everything below it ends: servers at the end of their control
sockets, wardens at the end of their callers.
"""

import heapq
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentrl_sandbox.groups import Groups
from agentrl_sandbox.isolation import WORK, Host, has_children, load, sweep
from agentrl_sandbox.isolation.trees import clear
from agentrl_sandbox.kernel import syscalls

_UNIT = 100
# Nobody else on Linux hands these out: above all that containers and systemd take, or, in a container that has only the
# first 65,536, above ordinary users and below systemd's dynamic ones.
_MANY, _FEW = range(1_900_000_000, 1_901_000_000), range(57_000, 64_000)
_ZYGOTE = Path(__file__).parent / "zygote"
_WARM = (
    *("abc", "array", "bisect", "collections", "contextlib", "copy", "dataclasses", "datetime", "enum", "functools"),
    *("heapq", "io", "itertools", "json", "math", "operator", "os", "random", "re", "string", "struct", "sys"),
    *("threading", "time", "traceback", "types", "typing", "linecache"),
)
FLAVOURS: dict[str, tuple[str, ...]] = {"base": _WARM, "numpy": (*_WARM, "numpy", "numpy.random")}
"""What a server's interpreter has imported before it is forked."""
_MOST_RESTARTS = 5


@dataclass
class Order:
    """A job that waits for its server, or runs."""

    number: int
    flavour: str
    caller: int
    slot: int = -1
    pidfd: int = -1


@dataclass
class Server:
    """A zygote: its process, its control socket, and the orders it has taken and not confirmed."""

    flavour: str
    control: socket.socket
    launcher: "subprocess.Popen[bytes]"
    pidfd: int = -1
    born: float = field(default_factory=time.monotonic)
    sent: dict[int, Order] = field(default_factory=dict)
    words: bytes = b""
    """What it last wrote to stderr: nothing, if all is well."""


class Supervisor:
    """Runs until the pool hangs up."""

    def __init__(self, pool: socket.socket, told: dict[str, Any]) -> None:
        self.pool, self.told = pool, told
        self.block = enough_ids(told["slots"], told["sessions"]) if os.getuid() == 0 else None
        uid = None if self.block is None else self.block.first
        self.sessions = told["sessions"] if self.block is None else self.block.sessions
        slots = told["slots"] + self.sessions
        self.host = Host(tuple(told["roots"]), slots, uid, told["folder"], told["bwrap"])
        self.free = list(range(slots))
        self.tier = load(told["tier"])
        self.waiting: list[Order] = []
        self.running: dict[int, Order] = {}
        self.servers: dict[str, Server] = {}
        self.failures: dict[str, int] = {}
        self.groups = Groups(told["tier"])
        self.events = selectors.EpollSelector()
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        self._on(pool, self._from_pool)

    def serve(self) -> None:
        """The event loop."""
        self._start("base")
        while True:
            for key, _ in self.events.select():
                # An earlier event of this round may have closed it.
                if key.fd in self.events.get_map():
                    key.data()
            self._dispatch()
            has_children()

    def _on(self, source: Any, callback: Callable[[], None]) -> None:
        self.events.register(source, selectors.EVENT_READ, callback)

    def _tell(self, **message: Any) -> None:
        try:
            self.pool.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass  # the pool listens at its start only
        except OSError:
            self._leave()

    def _from_pool(self) -> None:
        try:
            text, handles, _, _ = socket.recv_fds(self.pool, 4096, 1)
        except OSError:
            self._leave()
        if not text:
            self._leave()
        order = json.loads(text)
        if order["op"] == "run":
            self.waiting.append(Order(order["id"], order["flavour"], handles[0]))
        elif order["id"] in self.running:
            _kill(self.running[order["id"]].pidfd)

    def _dispatch(self) -> None:
        """Pass on what waits, as far as there are slots and servers."""
        waiting, self.waiting = self.waiting, []
        for order in waiting:
            server = self.servers.get(order.flavour) or self._start(order.flavour)
            if server is None:
                os.close(order.caller)
            elif server.pidfd < 0 or not self.free:
                self.waiting.append(order)
            else:
                self._send(server, order)

    def _send(self, server: Server, order: Order) -> None:
        order.slot = heapq.heappop(self.free)
        server.sent[order.number] = order
        text = json.dumps({"id": order.number, "slot": order.slot}).encode()
        handles = [order.caller, *self.groups.open(order.slot)]
        with suppress(OSError):  # it died: its pidfd says so next
            socket.send_fds(server.control, [text], handles)
        for handle in handles:
            os.close(handle)

    def _start(self, flavour: str) -> Server | None:
        """Start the interpreter of a flavour; None when it keeps dying."""
        if self.failures.get(flavour, 0) >= _MOST_RESTARTS:
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        told = {
            "tier": self.told["tier"],
            "source": self.told["source"],
            "preload": FLAVOURS[flavour],
            "host": asdict(self.host),
            "handle": theirs.fileno(),
        }
        place = self.tier.first_place(self.host.folder)
        work = WORK if place is None else os.path.join(place, "box")
        environment = {**self.told["env"], "PYTHONPATH": str(_ZYGOTE)}
        environment |= self.tier.variables(place) if place is not None else {}
        environment["AGENTRL_SANDBOX_CONTROL"] = json.dumps(told)
        launcher = subprocess.Popen(
            [self.told["python"], os.path.join(work, self.told["source"])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        server = self.servers[flavour] = Server(flavour, ours, launcher)
        self._on(ours, lambda: self._from_server(server))
        self._on(launcher.stderr, lambda: self._listen(server))
        return server

    def _listen(self, server: Server) -> None:
        stream = server.launcher.stderr
        assert stream is not None, "made with a pipe"
        part = os.read(stream.fileno(), 1 << 16)
        server.words = (server.words + part)[-4096:]
        if not part:
            self.events.unregister(stream)

    def _from_server(self, server: Server) -> None:
        """The first message says that it is ready and holds its pidfd; each later one is a warden's."""
        try:
            text, handles, _, _ = socket.recv_fds(server.control, 4096, 1)
        except OSError:
            text, handles = b"", []
        if not text:
            self._lost(server)
        elif server.pidfd < 0:
            server.pidfd = handles[0]
            self.failures.pop(server.flavour, None)
            self._on(server.pidfd, lambda: self._lost(server))
            about = json.loads(text) | {"sessions": self.sessions, "uncounted": self.groups.why}
            self._tell(op="ready", flavour=server.flavour, **about)
        else:
            self._started(server.sent.pop(json.loads(text)["id"]), handles[0])

    def _started(self, order: Order, pidfd: int) -> None:
        order.pidfd = pidfd
        self.running[order.number] = order
        self._on(pidfd, lambda: self._ended(order))

    def _ended(self, order: Order) -> None:
        self.events.unregister(order.pidfd)
        os.close(order.pidfd)
        del self.running[order.number]
        heapq.heappush(self.free, order.slot)

    def _lost(self, server: Server) -> None:
        """A server is gone, and under the namespace tier all its runs with it; the next order starts another."""
        self.events.unregister(server.control)
        server.control.close()
        if server.pidfd >= 0:
            self.events.unregister(server.pidfd)
            _kill(server.pidfd)
            os.close(server.pidfd)
        else:
            self.failures[server.flavour] = _MOST_RESTARTS
            server.launcher.wait()
        for order in server.sent.values():
            heapq.heappush(self.free, order.slot)
        words = self._last_words(server)
        if server.pidfd < 0:
            self._tell(op="failed", flavour=server.flavour, why=words)
        for stream in (server.launcher.stdin, server.launcher.stdout, server.launcher.stderr):
            if stream is not None:
                stream.close()
        del self.servers[server.flavour]

    def _last_words(self, server: Server) -> str:
        stream = server.launcher.stderr
        if stream is not None and stream in self.events.get_map():
            os.set_blocking(stream.fileno(), False)
            server.words += stream.read() or b""
            self.events.unregister(stream)
        lines = server.words.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a word"

    def _leave(self) -> None:
        """End every server, see it gone, then go."""
        for server in self.servers.values():
            server.control.close()
            if server.pidfd >= 0:
                _kill(server.pidfd)
            else:
                server.launcher.kill()
        for order in self.running.values():
            _kill(order.pidfd)
        sweep()
        try:
            self.groups.close()
            clear(self.host.folder)
        finally:
            os._exit(0)


@dataclass
class Ids:
    """User ids that no other supervisor here uses while the sockets, locks on them, live."""

    locks: list[socket.socket]
    first: int
    sessions: int
    """So many sessions can be open: as many as were asked for, or fewer where other supervisors have the ids."""


def enough_ids(slots: int, sessions: int) -> Ids:
    """An id each for the supervisor's servers, `slots` wardens and up to `sessions` more. OSError for too few."""
    while True:
        try:
            return Ids(*own_ids(1 + slots + sessions), sessions)
        except OSError:
            if sessions <= _UNIT:
                raise
            sessions //= 2


def own_ids(count: int) -> tuple[list[socket.socket], int]:
    """The first of `count` user ids that no other supervisor here uses while the sockets, locks on them, live."""
    size = -(-count // _UNIT) * _UNIT
    ids = _MANY if _maps(_MANY.stop) else _FEW
    blocks = list(range(ids.start, ids.stop - size + 1, _UNIT))
    # The locks' names count within a network namespace only; those beside it most likely begin elsewhere.
    begin = os.stat("/proc/self/ns/net").st_ino % max(1, len(blocks))
    for first in blocks[begin:] + blocks[:begin]:
        if locks := _lock_ids(range(first, first + size, _UNIT)):
            return locks, first
    raise OSError(f"no {count} unused user ids are left for a sandbox")


def _maps(uid: int) -> bool:
    """Whether this process's user namespace has all users and groups up to `uid`."""
    lines = [Path("/proc/self", name).read_text().split() for name in ("uid_map", "gid_map")]
    return all(len(words) == 3 and words[0] == "0" and int(words[2]) > uid for words in lines)


def _lock_ids(units: Iterable[int]) -> list[socket.socket]:
    """A lock on each of `units`, or none at all."""
    locks = []
    for unit in units:
        locks.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        try:
            locks[-1].bind(f"\0agentrl-sandbox-{unit}")
        except OSError:
            for lock in locks:
                lock.close()
            return []
    return locks


def _kill(pidfd: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def main() -> None:
    """Entry: a file descriptor and JSON as arguments."""
    signal.signal(signal.SIGINT, lambda *_: None)  # the pool ends it, not a terminal; what it starts has the default
    pool = socket.socket(fileno=int(sys.argv[1]))
    Supervisor(pool, json.loads(sys.argv[2])).serve()
