"""Calls a function in another process with a time limit: symbolic algebra may take for ever, or all memory.

Invariants: the caller waits at most for the time limit, not counting the start; a process that exceeds it or dies is
killed and replaced; the processes end with this one.
"""

import os
import pickle
import select
import subprocess
import sys
import time
from threading import BoundedSemaphore, Lock
from typing import Any

from agentrl.core.errors import InfraError
from agentrl.rewards.processes import LENGTH, result

AT_ONCE = 4
"""Processes for one function."""
START = 300.0
"""Seconds for a process to load its function, on a busy machine too."""


class IsolatedFunction:
    """The function `name` of `module`, called from any thread."""

    def __init__(self, module: str, name: str, *, timeout: float) -> None:
        self.origin = (module, name)
        self.timeout = timeout
        self._slots = BoundedSemaphore(AT_ONCE)
        self._lock = Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._owner = os.getpid()

    def __call__(self, *, timeout: float | None = None, **given: Any) -> Any:
        """What the function returns. Raises TimeoutError, UserError, and InfraError when the function does."""
        with self._slots:
            with self._lock:
                if self._owner != os.getpid():  # a fork must not talk to its parent's processes
                    self._idle, self._owner = [], os.getpid()
                worker = self._idle.pop() if self._idle else None
            worker = worker or self._started()
            outcome, value = _ask(worker, given, self.timeout if timeout is None else timeout)
            with self._lock:
                self._idle.append(worker)
        return result(outcome, value)

    def close(self) -> None:
        """End the processes that are idle."""
        while self._idle:
            _kill(self._idle.pop())

    def _started(self) -> "subprocess.Popen[bytes]":
        worker = subprocess.Popen(
            [sys.executable, "-m", "agentrl.rewards.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
        )
        result(*_ask(worker, self.origin, START))
        return worker


def _ask(worker: "subprocess.Popen[bytes]", message: Any, timeout: float) -> tuple[str, Any]:
    """Send one message and wait for its answer; without one the process is killed. Raises TimeoutError, InfraError."""
    assert worker.stdin is not None
    body, until = pickle.dumps(message), time.monotonic() + timeout
    try:
        worker.stdin.write(LENGTH.pack(len(body)) + body)
        worker.stdin.flush()
        (size,) = LENGTH.unpack(_read(worker, LENGTH.size, until))
        answer: tuple[str, Any] = pickle.loads(_read(worker, size, until))
        return answer
    except OSError as error:
        _kill(worker)
        if isinstance(error, TimeoutError):
            raise
        raise InfraError(f"the process of {message} died") from None


def _read(worker: "subprocess.Popen[bytes]", size: int, until: float) -> bytes:
    """`size` bytes. Raises TimeoutError, and EOFError's kin OSError when the process ends."""
    assert worker.stdout is not None
    found = b""
    while len(found) < size:
        left = until - time.monotonic()
        if left <= 0 or not select.select([worker.stdout], [], [], left)[0]:
            raise TimeoutError("no answer in time")
        part = os.read(worker.stdout.fileno(), size - len(found))
        if not part:
            raise BrokenPipeError("the process ended")
        found += part
    return found


def _kill(worker: "subprocess.Popen[bytes]") -> None:
    worker.kill()
    worker.communicate()
