"""Writes dumps in a thread, so that sampling and training do not wait for them: large ones in another process.

Invariants: dumps are written in order; at most `MOST_PENDING` of them are not on the disk yet, so a disk that is slower
than the steps delays these and fills no memory; a dump that cannot be written costs a warning, never the run. The bytes
on the disk are the same whichever process writes. This one does where the tokenizer or an object of a row cannot be
sent, and where the other one fails.

A million tokens take 0.7 to 1 s of CPU, which would hold the interpreter of the step.
"""

import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.core.isolated import Failed, IsolatedFunction
from agentrl.tracking.dumps.jsonl import write_trajectories
from agentrl.tracking.dumps.text import Decode, TokenTexts
from agentrl.trajectory.trajectory import Trajectory

log = logging.getLogger(__name__)

MOST_PENDING = 2
LARGE_TOKENS = 16_384
"""Tokens of a dump that another process writes: a smaller one takes less than 0.1 s."""
WRITE_SECONDS = 3600.0
CONTINUES = (
    "the run continues without it (further ones are only counted: perf/dumps_failed); free the disk, or set "
    "trainer.rollout_data_dir and trainer.validation_data_dir to null"
)


class Dump(NamedTuple):
    """The trajectories of a step, and their file."""

    path: Path
    step: int
    trajectories: Sequence[Trajectory]


class DumpWriter:
    """One thread that writes dumps."""

    def __init__(self, decode: Decode, tokenizer: Any = None, isolated: type[Any] = IsolatedFunction) -> None:
        """`decode` decodes with `tokenizer`, special tokens included; without a tokenizer no other process writes.
        `isolated`: makes the function of the other process."""
        self._tokenizer, self._sends = tokenizer, True
        self._process = isolated(__name__, write_sent.__name__, timeout=WRITE_SECONDS, at_once=1)
        self.failures: list[str] = []
        """One line for each dump that could not be written."""
        self.texts = TokenTexts(decode)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dumps")
        self._pending: deque[Future[None]] = deque()

    def write(
        self, path: Path, step: int, trajectories: Sequence[Trajectory], after: Sequence["Future[None]"] = ()
    ) -> None:
        """Write a dump soon, after the work of `after` has ended; the arguments must not change any more otherwise."""
        self.wait(MOST_PENDING - 1)
        dump = Dump(path.absolute(), step, trajectories)
        self._pending.append(self._thread.submit(self._write, dump, after))

    def wait(self, left: int = 0) -> None:
        """Return when at most `left` dumps are not on the disk."""
        while len(self._pending) > left:
            self._pending.popleft().result()

    def close(self) -> None:
        """Write what is pending, and end thread and process."""
        self._thread.shutdown()
        self._process.close()

    def _write(self, dump: Dump, after: Sequence["Future[None]"]) -> None:
        wait(after)
        try:
            if not self._sent(dump):
                write_trajectories(**dump._asdict(), decode=self.texts)
        except Exception as error:  # a full disk, a tokenizer or an object of a user's that fails
            self.failures.append(f"{dump.path} cannot be written: {_reason(error)}")
            if len(self.failures) == 1:
                log.warning("%s; %s", self.failures[0], CONTINUES)

    def _sent(self, dump: Dump) -> bool:
        """Whether another process has written the dump."""
        tokens = sum(len(ledger) for trajectory in dump.trajectories for ledger in trajectory.outlines)
        if tokens < LARGE_TOKENS or not self._sends or (tokenizer := self._sendable) is None:
            return False
        try:
            self._process(dump=dump, tokenizer=tokenizer)
        except Failed:  # a full disk: this process says so when it fails, too
            return False
        except Exception as error:  # an object of a user's that cannot be sent, a process that died
            log.warning("this process writes dumps from now on: %s", error)
            self._sends = False
            return False
        return True

    @cached_property
    def _sendable(self) -> str | None:
        return sendable(self._tokenizer)


def write_sent(dump: Dump, tokenizer: str) -> None:
    """Write a dump in the other process. `tokenizer`: the JSON of a fast one."""
    write_trajectories(**dump._asdict(), decode=_texts_of(tokenizer))


def sendable(tokenizer: Any) -> str | None:
    """A fast tokenizer as text; None for one that is Python code, as a whole or in a part."""
    if not getattr(tokenizer, "is_fast", False):
        return None
    try:
        return str(tokenizer.backend_tokenizer.to_str())
    except Exception:  # tokenizers raises a bare Exception for a part written in Python
        return None


@lru_cache(maxsize=1)
def _texts_of(tokenizer: str) -> TokenTexts:
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(tokenizer)
    return TokenTexts(lambda ids: str(made.decode(list(ids), skip_special_tokens=False)))


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
