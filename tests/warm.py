"""Processes that start with PyTorch and transformers imported, so that a command costs no seconds of imports; and with
a configuration composed.

Each is a fork of one server process, which is started when the first is asked for. Apart from that it is what
`python -m agentrl` is: a process, an exit code, signals, streams of its own. tests/cli and tests/packaging start the
command cold.
"""

import atexit
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

IMPORTED = [
    "torch",
    "transformers.models.llama.modeling_llama",
    "hydra._internal.hydra",
    "pyarrow.parquet",
    "agentrl.train",
    "agentrl.cli.main",
    "agentrl.cli.train",
    "agentrl.engines.hf.hf_engine",
    "agentrl.training.checkpoint.run_start",
    "tests.composed",
    __name__,
]
START_METHOD = "forkserver"
CONTEXT = get_context(START_METHOD)
CONTEXT.set_forkserver_preload(IMPORTED)


class Process:
    """A function in a process of its own, in a session of its own if asked; what it writes goes to two files."""

    def __init__(
        self,
        work: Callable[..., None],
        *args: Any,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        start_new_session: bool = False,
    ) -> None:
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        place = (str(cwd or Path.cwd()), dict(env or os.environ), start_new_session)
        given = (_Stream(self.out.fileno()), _Stream(self.err.fileno()), *place, work, args)
        self._process: BaseProcess = CONTEXT.Process(target=_begin, args=given)  # type: ignore[attr-defined]
        self._process.start()
        self.pid = self._process.pid

    def wait(self, timeout: float = 600) -> int:
        """The exit code; minus the signal's number for one that was killed. Raises TimeoutExpired, and kills it."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self.kill()
            raise subprocess.TimeoutExpired(str(self._process), timeout)
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def lines(self) -> list[str]:
        """The whole lines on its stdout so far."""
        return self.said()[0].splitlines()

    def wait_for(self, lines: int) -> None:
        """Return when it has written so many lines; raises AssertionError when it ends before."""
        while len(self.lines()) < lines:
            assert self.poll() is None, self.said()[1]
            time.sleep(0.005)

    def said(self) -> tuple[str, str]:
        """All that it wrote so far to its two streams."""
        texts = []
        for file in (self.out, self.err):
            file.seek(0)
            texts.append(file.read().decode())
        return texts[0], texts[1]


def start_agentrl(*args: str, **options: Any) -> Process:
    """`python -m agentrl ARGS`."""
    return Process(_agentrl, args, **options)


def run_agentrl(*args: str, timeout: float = 600, **options: Any) -> "subprocess.CompletedProcess[str]":
    """`python -m agentrl ARGS`, awaited, its output captured."""
    process = start_agentrl(*args, **options)
    code = process.wait(timeout)
    return subprocess.CompletedProcess(["agentrl", *args], code, *process.said())


class _Stream:
    """A file descriptor that travels to the new process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return _Stream._arrived, (DupFd(self.number),)

    @staticmethod
    def _arrived(sent: Any) -> "_Stream":
        return _Stream(sent.detach())


def _begin(
    out: _Stream, err: _Stream, cwd: str, env: dict[str, str], leads: bool, work: Callable[..., None], args: Any
) -> None:
    for stream, number in ((out, 1), (err, 2)):
        os.dup2(stream.number, number)
        os.close(stream.number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    if leads:
        os.setsid()
    code = _code(work, args)
    threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter does at its end, and multiprocessing does not
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _code(work: Callable[..., None], args: Any) -> int:
    try:
        work(*args)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _agentrl(args: tuple[str, ...]) -> None:
    sys.path[:] = [os.getcwd(), *(path for path in sys.path if path)]
    sys.argv[1:] = args
    runpy.run_module("agentrl", run_name="__main__", alter_sys=True)
