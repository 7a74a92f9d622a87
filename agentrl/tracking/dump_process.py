"""A process that writes dumps, so that their Python does not hold the interpreter of the run.

Invariants: it gets text and arrays, which cost little to send, and needs neither PyTorch nor a user's class; a dump is
whole or absent, also when the process is killed; it ends with the run, since its input is then closed.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.core.atomic_files import draft_of
from agentrl.tracking.dumps import Unwritable
from agentrl.tracking.packed import PackedTrajectory, chunks

GRACE = 10.0
"""Seconds that a process without its input may take to end."""


class ProcessEnded(Exception):
    """The process died; the text has its exit code."""


class DumpProcess:
    """One process; it writes one dump at a time."""

    def __init__(self, tokenizer: str) -> None:
        """`tokenizer`: what `tokenizers.Tokenizer.to_str` returns."""
        self._tokenizer: str | None = tokenizer  # sent with the first dump, which may wait for the imports
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentrl.tracking.dump_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for the run, which finishes its dumps before it ends
        )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def write(self, path: Path, trajectories: Iterable[PackedTrajectory]) -> None:
        """Write a dump and its index; returns when both are on the disk. Raises Unwritable, ProcessEnded."""
        try:
            failure = self._ask(path.absolute(), trajectories)
        except (BrokenPipeError, EOFError, pickle.UnpicklingError):
            self.kill()
            draft_of(path, self.pid).unlink(missing_ok=True)
            raise ProcessEnded(f"exit code {self._process.returncode}") from None
        except BaseException:  # half a dump is sent: the process cannot be used for another
            self.kill()
            raise
        if failure is not None:
            raise Unwritable(failure)

    def close(self) -> None:
        """End the process; it is idle, since `write` waits for it."""
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.communicate(timeout=GRACE)
        self.kill()

    def kill(self) -> None:
        """End the process at once; safe to call twice."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]  # both are pipes

    def _ask(self, path: Path, trajectories: Iterable[PackedTrajectory]) -> str | None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        messages: list[Any] = [str(path)] if self._tokenizer is None else [self._tokenizer, str(path)]
        self._tokenizer = None
        for message in messages:
            pickle.dump(message, stdin, protocol=5)
        for chunk in chunks(trajectories):
            stdin.write(pickle.dumps(chunk, protocol=5))
        stdin.write(pickle.dumps(None))
        stdin.flush()
        failure: str | None = pickle.load(stdout)
        return failure
