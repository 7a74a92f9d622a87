"""The state of a run in its folder: running, finished, stopped or failed, and how many steps it has.

Invariant: a run that was killed leaves "running"; a reader who finds no such process says "killed".
"""

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self

from agentrl.core.errors import UserError
from agentrl.core.inside import read_inside
from agentrl.core.outputs import write_atomic

STATUS_FILE = "status.json"
RUNNING, FINISHED, STOPPED, FAILED, KILLED = "running", "finished", "stopped", "failed", "killed"


Ended = Literal["finished", "stopped", "failed"]


def ended(error: BaseException | None) -> Ended:
    """How a run ends that ends with an error, or without one."""
    if error is None:
        return "finished"
    return "stopped" if isinstance(error, KeyboardInterrupt | GeneratorExit) else "failed"


class RunStatus:
    """Writes the status of one run: around its steps, as a context manager."""

    def __init__(self, folder: Path, total: int, step: int | None = None) -> None:
        """`step`: the last one that the run has taken, for a run that may end early without an error."""
        self.folder, self.total, self.step = folder, total, step

    def __enter__(self) -> Self:
        self._write({"state": RUNNING, "pid": os.getpid(), "host": socket.gethostname()})
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        state = ended(error)
        early = state == FINISHED and self.step not in (None, self.total)
        about = {"error": f"{type(error).__name__}: {error}".splitlines()[0]} if state == FAILED else {}
        self._write({"state": STOPPED if early else state} | about)

    def _write(self, fields: dict[str, Any]) -> None:
        record = fields | {"total_steps": self.total}
        with suppress(OSError):  # a full disk costs the status, not the run
            write_atomic(self.folder / STATUS_FILE, [json.dumps(record) + "\n"])


def read_status(folder: Path) -> dict[str, Any]:
    """`state` and `total_steps`, with `error` for a failed run; empty where the folder has no status."""
    try:
        status = json.loads(read_inside(folder / STATUS_FILE, folder))
        found = {"state": str(status["state"]), "total_steps": int(status["total_steps"])}
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return {}
    if found["state"] == RUNNING and status.get("host") == socket.gethostname() and not _lives(status.get("pid")):
        found["state"] = KILLED
    return found | {"error": str(status.get("error", ""))}


def _lives(pid: object) -> bool:
    try:
        os.kill(int(str(pid)), 0)
    except PermissionError:  # another user's
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True
