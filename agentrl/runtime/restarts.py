"""A run that lost a process or a machine goes on by itself from what it last saved."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from agentrl.errors import InfraError

T = TypeVar("T")

log = logging.getLogger(__name__)

CLOCKS = 1.0
"""Seconds by which a file system's clock may be behind."""


class WorkerDied(InfraError):
    """A process of the run is gone, and with it what it held since the last checkpoint."""


def persist(run: Callable[[Any], T], config: Any, folder: Path) -> T:
    """`run(config)`, and again, from the newest checkpoint in `folder`, each time that a worker died:
    `trainer.max_restarts` times.

    Raises WorkerDied when that was not enough.
    """
    trainer, began = config.trainer, time.time() - CLOCKS
    for restart in range(trainer.max_restarts):
        try:
            return run(config)
        except WorkerDied as died:
            log.warning("%s; the run goes on by itself (restart %d of %d)", died, restart + 1, trainer.max_restarts)
            config = replace(config, trainer=resuming(trainer, folder, began))
    return run(config)


def resuming(trainer: Any, folder: Path, began: float) -> Any:
    """The settings to go on with: from the newest checkpoint written since `began` (seconds since the epoch).

    Without one the run begins as it began; a checkpoint of an older run in the same folder is not taken for its own.
    """
    if trainer.resume_mode == "auto":
        return trainer
    own = [path for path in folder.glob("global_step_*") if path.stat().st_mtime >= began]
    if not own:
        return trainer
    newest = max(own, key=lambda path: (path.stat().st_mtime, len(path.name), path.name))
    return replace(trainer, resume_mode="resume_path", resume_from_path=str(newest))
