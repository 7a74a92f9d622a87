"""The process behind `IsolatedFunction`: loads one function, then answers calls until its parent ends.

The first message is the function's origin and the level of logs; each further one has the arguments of a call. Frames
back are answers, and before them what the function prints and logs.
"""

import asyncio
import inspect
import io
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from typing import Any

GRACE = 2.0
"""Seconds that a process without its parent may take to end."""
END_WITH_PARENT = f"exec 3<&0; (read _ <&3; sleep {GRACE:g}; kill -9 0) &"
"""A shell that kills the process, since a function may hold the lock of Python. An idle process has ended by itself."""
Answer = tuple[str, Any]


def main() -> None:
    """Serve the parent on the socket that the command line names, with the parent's `sys.path` behind it."""
    sys.path[:] = sys.argv[2:]
    subprocess.run(["sh", "-c", END_WITH_PARENT], check=False)
    link = Link(Connection(int(sys.argv[1])))
    (path, name), level = pickle.loads(link.channel.recv_bytes())
    outcome, function = _guarded(lambda: _loaded(path, name))
    link.answer((outcome, _files()) if outcome == "done" else (outcome, function))
    link.forward(level)
    while True:
        try:
            message = link.channel.recv_bytes()
        except EOFError:
            return
        link.answer(_called(function, message))


class Link:
    """The connection to the parent."""

    def __init__(self, channel: Connection) -> None:
        self.channel = channel
        self._lock = threading.RLock()  # functions may have threads

    def put(self, kind: str, value: Any) -> None:
        """Send a frame."""
        with self._lock:
            self.channel.send_bytes(pickle.dumps((kind, value)))

    def put_nowait(self, record: logging.LogRecord) -> None:
        """Send a record, as to a queue of records."""
        self.put("log", record)

    def answer(self, answer: Answer) -> None:
        """Send the answer to a call."""
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            self.put("alone", None)
        self.put(answer[0], _sendable(answer[1]))

    def forward(self, level: int) -> None:
        """Send what is printed and logged from now on."""
        for file, kind in enumerate(("stdout", "stderr"), start=1):
            raw: Any = Stream(self, kind, file)
            setattr(sys, kind, io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True))
        root = logging.getLogger()
        root.handlers, root.level = [QueueHandler(self)], level  # type: ignore[arg-type]


class Stream(io.RawIOBase):
    """Standard output, or standard error, of the function."""

    def __init__(self, link: Link, kind: str, file: int) -> None:
        self.link, self.kind, self.file = link, kind, file

    def writable(self) -> bool:
        """Always true."""
        return True

    def fileno(self) -> int:
        """The file for programs that the function starts."""
        return self.file

    def write(self, data: Any) -> int:
        """Send a text."""
        self.link.put(self.kind, bytes(data).decode(errors="replace"))
        return len(data)


def _loaded(path: str, name: str) -> Callable[..., Any]:
    from agentrl.core.plugins import load_attribute

    with redirect_stdout(io.StringIO()):  # the parent has imported the module, and shown what that prints
        function: Callable[..., Any] = load_attribute(path, name, what="a function")
    return function


def _files() -> dict[str, int]:
    """When each file of code that is loaded, apart from our own, has changed."""
    loaded = [module for name, module in list(sys.modules.items()) if not name.startswith("agentrl.")]
    found = [getattr(module, "__dict__", {}).get("__file__") for module in loaded]
    return {file: os.stat(file).st_mtime_ns for file in found if isinstance(file, str) and os.path.exists(file)}


def _called(function: Callable[..., Any], message: bytes) -> Answer:
    try:
        given = pickle.loads(message)
    except Exception as error:
        return "unread", f"its arguments do not load in another process: {error}"

    def call() -> Any:
        result = function(**given)
        return asyncio.run(asyncio.wait_for(result, None)) if inspect.isawaitable(result) else result

    try:
        return _guarded(call)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that the function has left


def _sendable(value: Any) -> Any:
    """The value, with its text in place of each part that cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(value))
        return value
    except Exception:  # objects of the user's
        if isinstance(value, Mapping):
            return {key: _sendable(item) for key, item in value.items()}
        return [_sendable(item) for item in value] if isinstance(value, list) else repr(value)


def _guarded(call: Callable[[], Any]) -> Answer:
    """`call()`, with its errors returned instead of raised: it is the user's code."""
    from agentrl.core.errors import UserError, located

    try:
        return "done", call()
    except UserError as error:
        return "refused", str(error)
    except (Exception, SystemExit) as error:
        return "failed", (type(error).__name__, located(error))
