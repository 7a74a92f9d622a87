"""The supervisor: the process that owns zygotes and slots. Started by exec in a clean environment; one thread.

It sees no code and no data of a job. For each job the pool sends it one end of a socket, which goes on to a zygote and
from there to the job supervisor. It ends when the pool ends. Then zygotes end because their control sockets close, and
job supervisors because their connections close.
"""

import heapq
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from agentrl_sandbox import zygote_process
from agentrl_sandbox.cgroups import Cgroups
from agentrl_sandbox.isolation import Host, has_children, kill_descendants, load
from agentrl_sandbox.isolation.folder_contents import clear
from agentrl_sandbox.kernel import syscalls
from agentrl_sandbox.user_ids import enough_ids
from agentrl_sandbox.zygote_process import Run, ZygoteProcess, kill

_MOST_FAILURES = 5


class Supervisor:
    """Runs until the pool closes its socket."""

    def __init__(self, pool: socket.socket, config: dict[str, Any]) -> None:
        self.pool, self.config = pool, config
        self.ids = enough_ids(config["slots"], config["sessions"]) if os.getuid() == 0 else None
        self.sessions = config["sessions"] if self.ids is None else self.ids.sessions
        slots = config["slots"] + self.sessions
        uid = None if self.ids is None else self.ids.first
        self.host = Host(tuple(config["roots"]), slots, uid, config["folder"], config["bwrap"])
        self.free = list(range(slots))
        self.tier = load(config["tier"])
        self.waiting: list[Run] = []
        self.running: dict[int, Run] = {}
        self.zygotes: dict[str, ZygoteProcess] = {}
        self.failures: dict[str, int] = {}
        self.cgroups = Cgroups(config["tier"])
        self.events = selectors.EpollSelector()
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        self._on(pool, self._from_pool)

    def serve(self) -> None:
        """Run the event loop."""
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

    def _to_pool(self, **message: Any) -> None:
        try:
            self.pool.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass  # the pool reads at its start only
        except OSError:
            self._shut_down()

    def _from_pool(self) -> None:
        try:
            text, handles, _, _ = socket.recv_fds(self.pool, 4096, 1)
        except OSError:
            self._shut_down()
        if not text:
            self._shut_down()
        message = json.loads(text)
        if message["op"] == "run":
            self.waiting.append(Run(message["id"], message["flavour"], handles[0]))
        elif message["id"] in self.running:
            kill(self.running[message["id"]].pidfd)

    def _dispatch(self) -> None:
        """Send the waiting runs to their zygotes while there are free slots."""
        waiting, self.waiting = self.waiting, []
        for run in waiting:
            zygote = self.zygotes.get(run.flavour) or self._start(run.flavour)
            if zygote is None:
                os.close(run.connection)
            elif not zygote.ready or not self.free:
                self.waiting.append(run)
            else:
                self._send(zygote, run)

    def _send(self, zygote: ZygoteProcess, run: Run) -> None:
        run.slot = heapq.heappop(self.free)
        handles = [run.connection, *self.cgroups.open(run.slot)]
        zygote.send(run, handles)
        for handle in handles:
            os.close(handle)

    def _start(self, flavour: str) -> ZygoteProcess | None:
        """Start the zygote of a flavour; None after too many failures."""
        if self.failures.get(flavour, 0) >= _MOST_FAILURES:
            return None
        zygote = zygote_process.start(flavour, self.tier, self.host, self.config)
        self.zygotes[flavour] = zygote
        self._on(zygote.control, lambda: self._from_zygote(zygote))
        self._on(zygote.errors, lambda: self._read_stderr(zygote))
        return zygote

    def _read_stderr(self, zygote: ZygoteProcess) -> None:
        if not zygote.read_stderr():
            self.events.unregister(zygote.errors)

    def _from_zygote(self, zygote: ZygoteProcess) -> None:
        """The first message says that the zygote is ready and brings its pidfd; each later one a job supervisor's."""
        try:
            text, handles, _, _ = socket.recv_fds(zygote.control, 4096, 1)
        except OSError:
            text, handles = b"", []
        if not text:
            self._lost(zygote)
        elif not zygote.ready:
            zygote.pidfd = handles[0]
            self.failures.pop(zygote.flavour, None)
            self._on(zygote.pidfd, lambda: self._lost(zygote))
            about = json.loads(text) | {"sessions": self.sessions, "uncounted": self.cgroups.why}
            self._to_pool(op="ready", flavour=zygote.flavour, **about)
        else:
            self._started(zygote.sent.pop(json.loads(text)["id"]), handles[0])

    def _started(self, run: Run, pidfd: int) -> None:
        run.pidfd = pidfd
        self.running[run.number] = run
        self._on(pidfd, lambda: self._ended(run))

    def _ended(self, run: Run) -> None:
        self.events.unregister(run.pidfd)
        os.close(run.pidfd)
        del self.running[run.number]
        heapq.heappush(self.free, run.slot)

    def _lost(self, zygote: ZygoteProcess) -> None:
        """A zygote ended, and under the namespace tier all its runs with it; the next run starts another."""
        self.events.unregister(zygote.control)
        zygote.control.close()
        if zygote.ready:
            self.events.unregister(zygote.pidfd)
            kill(zygote.pidfd)
            os.close(zygote.pidfd)
        else:
            self.failures[zygote.flavour] = _MOST_FAILURES
            zygote.launcher.wait()
        for run in zygote.sent.values():
            heapq.heappush(self.free, run.slot)
        if zygote.errors in self.events.get_map():
            self.events.unregister(zygote.errors)
        if not zygote.ready:
            self._to_pool(op="failed", flavour=zygote.flavour, why=zygote.last_stderr_line())
        zygote.close()
        del self.zygotes[zygote.flavour]

    def _shut_down(self) -> None:
        """End every zygote and every run, then this process."""
        for zygote in self.zygotes.values():
            zygote.kill()
        for run in self.running.values():
            kill(run.pidfd)
        kill_descendants()
        try:
            self.cgroups.close()
            clear(self.host.folder)
        finally:
            os._exit(0)


def main() -> None:
    """Entry: a file descriptor and JSON as arguments."""
    signal.signal(signal.SIGINT, lambda *_: None)  # the pool ends it, not a terminal; its children have the default
    pool = socket.socket(fileno=int(sys.argv[1]))
    Supervisor(pool, json.loads(sys.argv[2])).serve()
