"""Writing files so that a reader, or a restart, never finds half of one."""

import os
from collections.abc import Iterable
from pathlib import Path


def write_atomic(path: Path, chunks: Iterable[str]) -> None:
    """Replace `path` by the chunks as UTF-8: all of them or, when anything fails, none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_of(path, os.getpid())
    draft.unlink(missing_ok=True)
    try:
        # Never through a link that lies there. No newline translation: what is written must be what a later run would
        # write.
        with draft.open("x", encoding="utf-8", newline="") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def draft_of(path: Path, pid: int) -> Path:
    """Where process `pid` writes before it replaces `path`: what is left of a process that was killed."""
    return path.with_name(f".{path.name}.{pid}.tmp")
