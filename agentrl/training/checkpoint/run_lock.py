"""One run at a time writes to a folder.

Invariants: the process that starts the run has the lock; the kernel frees it when that process ends, even by a kill;
processes that the run starts do not keep it; readers of a folder do not need it.
"""

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from agentrl.core.errors import UserError
from agentrl.core.inside import inside

LOCK = ".lock"
MOST_SHOWN = 200
"""Characters of a lock's note that a message has."""
HELD = (errno.EACCES, errno.EAGAIN)

log = logging.getLogger(__name__)

_HERE: set[str] = set()
"""Folders that runs of this process write to."""


@contextmanager
def locked(run_dir: Path, key: str) -> Iterator[None]:
    """Create `run_dir` and lock it while the body runs. `key`: the setting that names the folder.

    A new folder that is empty at the end, except for the lock, is removed. A file system without locks gives a warning.
    Raises UserError where another run has the lock, or the folder cannot be created.
    """
    made = [place for place in (run_dir, *run_dir.parents) if not place.exists()]
    with _first_here(run_dir, key), _open(run_dir, key) as file:
        try:
            # A record lock, not flock: a forked child that outlives this process does not keep it, and NFS knows it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in HELD:
                who = " ".join(file.read(MOST_SHOWN).split())
                raise UserError(_in_use(run_dir, key, who or "another process")) from None
            log.warning("%s cannot be locked (%s): make sure that no other run writes there", run_dir, error.strerror)
        with suppress(OSError):  # a full disk: the lock works without the note
            _sign(file)
        try:
            yield
        finally:
            _remove_empty(run_dir, made)


@contextmanager
def _first_here(run_dir: Path, key: str) -> Iterator[None]:
    """A record lock belongs to the process: it does not keep a second run of this one out, and would end with it."""
    place = os.path.realpath(run_dir)
    if place in _HERE:
        raise UserError(_in_use(run_dir, key, "this very process: close it"))
    _HERE.add(place)
    try:
        yield
    finally:
        _HERE.discard(place)


def _remove_empty(run_dir: Path, made: Sequence[Path]) -> None:
    """Remove the folders in `made`, which this run created, where it wrote nothing."""
    if run_dir not in made or [file.name for file in run_dir.iterdir()] != [LOCK]:
        return
    (run_dir / LOCK).unlink()
    for place in made:
        with suppress(OSError):  # not empty
            place.rmdir()


def _open(run_dir: Path, key: str) -> IO[str]:
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        file = inside(run_dir / LOCK, run_dir)  # it is emptied
        return os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT, 0o644), "r+", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{key}={run_dir}: nothing can be written there: {error.strerror}; name another folder"
        ) from None


def _sign(file: IO[str]) -> None:
    """Write which process has the lock, for the error message of the next run."""
    pid, since = os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S")
    file.truncate(0)
    file.write(f"process {pid} on {socket.gethostname()}, since {since}: `kill {pid}` there ends and saves it\n")
    file.flush()


def _in_use(run_dir: Path, key: str, who: str) -> str:
    return f"{run_dir} is in use by another run ({who}): wait for its end, or give this run {key}=FOLDER"
