"""Calls a function in processes that can be killed: one that hangs there ends, and so does all that it started.

Invariants:
- a process does one call at a time, on its main thread; a call that is late, or whose process dies, costs that process,
  and the next call gets another one. The start of a process counts towards no call;
- while one process answers within IDLE_WAIT_SECONDS there is no second one: quick calls share a process, and its state;
- a process in which the function uses a GPU stays the only one: each would hold a copy of its model;
- all processes run the same code: none starts once a file of it has changed;
- what a function prints and logs appears here;
- all processes end with this one, however that ends.
"""

import logging
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from multiprocessing import Pipe
from queue import Empty, LifoQueue
from threading import BoundedSemaphore, Lock
from time import monotonic
from typing import Any

from agentrl.core.errors import InfraError, UserError
from agentrl.core.isolated_worker import GRACE

AT_ONCE = 4
"""Processes for one function."""
START = 300.0
"""Seconds for a process to load its function, on a busy machine too."""
IDLE_WAIT_SECONDS = 0.25
"""Seconds that a call waits for a process that is there before another one starts."""
BOOT = (
    "import os, sys; sys.path[:] = filter(os.path.isabs, sys.argv[2:]); "
    "import agentrl.core.isolated_worker as worker; worker.main()"
)
"""The program of a process. It imports what we import; programs that the function starts do not. It ignores the current
folder ("" in a notebook, "." after a user's function was loaded), whose files may have names of the standard library.
"""
ANSWERS = ("done", "failed", "refused", "unread")


class Failed(InfraError):
    """The function raised an exception."""

    kind = ""
    """The name of its class."""


class NotThere(InfraError):
    """The function, or an argument, does not load in another process."""


class IsolatedFunction:
    """The function `name` of a module, or of a Python file, called from any thread."""

    def __init__(self, module: str, name: str, *, timeout: float, at_once: int = AT_ONCE) -> None:
        self.origin, self.timeout, self._at_once = (module, name), timeout, at_once
        self._slots, self._starting = BoundedSemaphore(at_once), Lock()
        self._idle = LifoQueue[Process]()
        self._all: set[Process] = set()
        self._files: dict[str, int] = {}
        """When the files of its code had changed, as the first process found them."""
        self._owner, self._latest = os.getpid(), -IDLE_WAIT_SECONDS
        """The process that made it; when the last start ended."""

    def __call__(self, *, timeout: float | None = None, **given: Any) -> Any:
        """Call the function; returns its result. Raises TimeoutError, UserError, InfraError when the function does."""
        return self.call(pickle.dumps(given), timeout)

    def call(self, given: bytes, timeout: float | None = None) -> Any:
        """Call the function with pickled arguments."""
        with self._slots:
            process = self._free()
            answer = self._answer(process, given, self.timeout if timeout is None else timeout)
            self._idle.put(process)
        return _result(*answer)

    def warm(self) -> None:
        """Start the first process, unless it runs; its trouble is that of the first call."""
        if not self._all and not self._starting.locked():
            with suppress(InfraError):
                self._idle.put(self._free())

    def close(self) -> None:
        """End the processes; calls that are under way fail."""
        for process in list(self._all):
            self._end(process, GRACE if process in self._idle.queue else 0.0)
        self._idle = LifoQueue()

    def _free(self) -> "Process":
        """A process for one call: one that is there, or where that takes too long another one."""
        if self._owner != os.getpid():  # a fork must not talk to its parent's processes
            self.__init__(*self.origin, timeout=self.timeout, at_once=self._at_once)  # type: ignore[misc]
        while True:
            busy = self._all or self._starting.locked()
            with suppress(Empty):
                process = self._idle.get(timeout=IDLE_WAIT_SECONDS if busy else 0)
                if process.popen.poll() is None:
                    return process
                self._end(process)  # it died without a call
            if self._starting.acquire(blocking=False):
                try:
                    if self._may_start():  # asked under the lock: another start may just have ended
                        return self._started()
                finally:
                    self._starting.release()

    def _may_start(self) -> bool:
        """Whether the processes that are there have had time to answer, and no one stays alone."""
        waited = monotonic() - self._latest >= IDLE_WAIT_SECONDS
        return not self._all or (waited and not any(process.alone for process in self._all))

    def _started(self) -> "Process":
        process = Process()
        self._all.add(process)
        about = self.origin, logging.getLogger().getEffectiveLevel()
        try:
            files = _result(*self._answer(process, pickle.dumps(about), START))
            self._files = files | self._files
            if any(self._files[file] != changed for file, changed in files.items()):
                raise InfraError("its code has changed since the run began")
        except (TimeoutError, InfraError, UserError) as error:
            self._end(process)
            raise NotThere(f"it does not load in another process: {error}") from error
        finally:
            self._latest = monotonic()
        return process

    def _answer(self, process: "Process", message: bytes, timeout: float) -> tuple[str, Any]:
        try:
            return process.ask(message, monotonic() + timeout)
        except (TimeoutError, BlockingIOError):  # the latter: it does not read
            self._end(process)
            raise TimeoutError(f"no answer within {timeout:g} s") from None
        except Exception as error:  # a result may be an object of the user's, and raise anything when it loads
            self._end(process, GRACE)  # so that its exit code is its own
            died = isinstance(error, OSError | EOFError | pickle.UnpicklingError)
            why = f"its process died (exit code {process.popen.returncode})" if died else f"its result: {error}"
            raise InfraError(why) from None

    def _end(self, process: "Process", grace: float = 0.0) -> None:
        self._all.discard(process)
        process.end(grace)


class Process:
    """A process with one function."""

    def __init__(self) -> None:
        self.alone = False
        """Whether the function uses a GPU in it."""
        self._link, theirs = Pipe()
        with theirs:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", BOOT, str(theirs.fileno()), *sys.path],
                stdin=subprocess.PIPE,  # its end tells the process that we are gone
                pass_fds=[theirs.fileno()],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for the run, which may have scores to wait for before it ends
            )

    def ask(self, message: bytes, until: float) -> tuple[str, Any]:
        """Send a message, and wait for the answer. Raises TimeoutError, BlockingIOError where it
        reads none, and other errors where the process ended."""
        with socket.socket(fileno=os.dup(self._link.fileno())) as sending:  # a process that reads nothing is late, too
            micros = max(int(1e6 * (until - monotonic())), 1)
            sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", *divmod(micros, 10**6)))
        self._link.send_bytes(message)
        while (left := until - monotonic()) > 0 and self._link.poll(left):
            kind, value = pickle.loads(self._link.recv_bytes())
            if kind in ANSWERS:
                return kind, value
            self._heard(kind, value)
        raise TimeoutError

    def end(self, grace: float) -> None:
        """End it, within `grace` seconds by itself, and all that it started."""
        self._link.close()
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(grace)
        with suppress(OSError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.communicate()

    def _heard(self, kind: str, value: Any) -> None:
        if kind == "alone":
            self.alone = True
        elif kind != "log":
            getattr(sys, kind).write(value)
        elif (log := logging.getLogger(value.name)).isEnabledFor(value.levelno):
            log.handle(value)


def _result(outcome: str, value: Any) -> Any:
    """The value of an answer. Raises UserError and InfraError where the answer says so."""
    if outcome == "refused":
        raise UserError(value)
    if outcome == "unread":
        raise NotThere(value)
    if outcome == "failed":
        error = Failed(value[1])
        error.kind = value[0]
        raise error
    return value
