"""Writes dumps: small ones in this process, large ones in another.

Invariant: the bytes on the disk are the same either way. A process that dies is replaced, and its dump written again;
where that fails too, or the tokenizer is Python code, which cannot be sent, this process writes.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from agentrl.tracking.dump_process import DumpProcess, ProcessEnded
from agentrl.tracking.dumps import Advantages, packed_trajectories, write_trajectories
from agentrl.tracking.text import Decode, TokenTexts
from agentrl.trajectory.trajectory import Trajectory

log = logging.getLogger(__name__)

LEAST = 16_384
"""Tokens of a dump for which a process is started: with fewer, writing takes less than 0.1 s of the interpreter."""


class DumpWriter:
    """Writes one dump after the other; it is a context manager around all of them."""

    def __init__(self, decode: Decode, tokenizer: Any = None, *, least: int = LEAST) -> None:
        """`decode` decodes with `tokenizer`, special tokens included; without a tokenizer nothing is sent."""
        self.texts = TokenTexts(decode)
        self._tokenizer, self._least = tokenizer, least
        self._process: DumpProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def write(self, path: Path, step: int, trajectories: Sequence[Trajectory], advantages: Advantages) -> None:
        """Write the trajectories of a step. Raises OSError and Unwritable."""
        large = sum(len(ledger) for t in trajectories for ledger in t.ledgers) >= self._least
        if not (large and self._sent(path, step, trajectories, advantages)):
            write_trajectories(path, step, trajectories, self.texts, advantages)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _sent(self, path: Path, step: int, trajectories: Sequence[Trajectory], advantages: Advantages) -> bool:
        """Whether a process has written the dump."""
        for another in ("a new one writes this dump again", "this process writes dumps from now on"):
            process = self._process or self._start()
            if process is None:
                return False
            try:
                process.write(path, packed_trajectories(step, trajectories, advantages))
            except ProcessEnded as ended:
                log.warning("the process that writes dumps died (%s); %s", ended, another)
                self._process = None
            else:
                return True
        self._tokenizer = None
        return False

    def _start(self) -> DumpProcess | None:
        tokenizer = sendable(self._tokenizer)
        if tokenizer is not None:
            self._process = DumpProcess(tokenizer)
        return self._process


def sendable(tokenizer: Any) -> str | None:
    """A fast tokenizer as text; None for one that is Python code, as a whole or in a part."""
    if not getattr(tokenizer, "is_fast", False):
        return None
    try:
        return str(tokenizer.backend_tokenizer.to_str())
    except Exception:  # tokenizers raises a bare Exception for a part written in Python
        return None
