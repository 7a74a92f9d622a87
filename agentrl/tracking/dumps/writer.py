"""Writes dumps in a thread, so that sampling and training do not wait for them.

Invariants: dumps are written in order; at most `MOST_PENDING` of them are not on the disk yet, so a disk that is slower
than the steps delays these and fills no memory; a dump that cannot be written costs a warning, never the run.

A million tokens take this thread 0.7 to 1 s of CPU, a third of it in the tokenizer, with the interpreter held for
milliseconds at a time. With another process to write, 0.05 s of it would be left here.
"""

import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from agentrl.tracking.dumps.jsonl import write_trajectories
from agentrl.tracking.dumps.records import Advantages
from agentrl.tracking.dumps.text import Decode, TokenTexts
from agentrl.trajectory.trajectory import Trajectory

log = logging.getLogger(__name__)

MOST_PENDING = 2
CONTINUES = (
    "the run continues without it (further ones are only counted: perf/dumps_failed); free the disk, or set "
    "trainer.rollout_data_dir and trainer.validation_data_dir to null"
)


class DumpWriter:
    """One thread that writes dumps."""

    def __init__(self, decode: Decode) -> None:
        self.failures: list[str] = []
        """One line for each dump that could not be written."""
        self.texts = TokenTexts(decode)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dumps")
        self._pending: deque[Future[None]] = deque()

    def write(
        self,
        path: Path,
        step: int,
        trajectories: Sequence[Trajectory],
        advantages: Advantages,
        after: Sequence["Future[None]"] = (),
    ) -> None:
        """Write a dump soon, after the work of `after` has ended; the arguments must not change any more otherwise."""
        self.wait(MOST_PENDING - 1)
        self._pending.append(self._thread.submit(self._write, path, step, trajectories, advantages, after))

    def wait(self, left: int = 0) -> None:
        """Return when at most `left` dumps are not on the disk."""
        while len(self._pending) > left:
            self._pending.popleft().result()

    def close(self) -> None:
        """Write what is pending, and end the thread."""
        self._thread.shutdown()

    def _write(
        self,
        path: Path,
        step: int,
        trajectories: Sequence[Trajectory],
        advantages: Advantages,
        after: Sequence["Future[None]"],
    ) -> None:
        wait(after)
        try:
            write_trajectories(path, step, trajectories, self.texts, advantages)
        except Exception as error:  # a full disk, a tokenizer or an object of a user's that fails
            self.failures.append(f"{path} cannot be written: {_reason(error)}")
            if len(self.failures) == 1:
                log.warning("%s; %s", self.failures[0], CONTINUES)


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
