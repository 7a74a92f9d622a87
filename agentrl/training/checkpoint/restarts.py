"""A run that lost a process or a machine goes on by itself from what it last saved."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from agentrl.core.errors import InfraError
from agentrl.training.checkpoint.lineage import visible

T = TypeVar("T")

log = logging.getLogger(__name__)


class WorkerDied(InfraError):
    """A process of the run is gone, and with it what it held since the last checkpoint."""


def run_with_restarts(run: Callable[[Any], T], config: Any, folder: Path) -> T:
    """`run(config)`, and again, from the newest checkpoint in `folder`, each time that a worker died:
    `trainer.max_restarts` times.

    Raises WorkerDied when that was not enough.
    """
    restarts = Restarts(config, folder)
    while True:
        try:
            return run(restarts.config)
        except WorkerDied as died:
            restarts.after(died)


class Restarts:
    """The settings to begin with, and after each death of a worker those to go on with."""

    def __init__(self, config: Any, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.taken = 0
        self._trainer, self._before = config.trainer, checkpoint_ids(folder)

    def after(self, died: WorkerDied) -> None:
        """Make ready to go on. Raises `died` where `trainer.max_restarts` are used up."""
        most = self._trainer.max_restarts
        if self.taken >= most:
            raise died
        self.taken += 1
        log.warning("%s; the run resumes by itself (restart %d of %d)", died, self.taken, most)
        self.config = replace(self.config, trainer=resume_settings(self._trainer, self.folder, self._before))


def resume_settings(trainer: Any, folder: Path, before: set[tuple[str, int]]) -> Any:
    """The settings to go on with: from the newest checkpoint in the folder, once the run has made the folder its own.

    `before`: the `checkpoint_ids` there when the run began. Where that is still all, the run begins as it began.
    """
    now = checkpoint_ids(folder)
    return replace(trainer, resume_mode="auto", resume_from_path=None) if now and now != before else trainer


def checkpoint_ids(folder: Path) -> set[tuple[str, int]]:
    """The folder's checkpoints, by name and inode: a checkpoint that replaced another is not the same."""
    return {(path.name, path.stat().st_ino) for path in visible(folder).values()}
