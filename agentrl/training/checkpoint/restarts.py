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
    trainer, before = config.trainer, checkpoint_ids(folder)
    for restart in range(trainer.max_restarts):
        try:
            return run(config)
        except WorkerDied as died:
            log.warning("%s; the run goes on by itself (restart %d of %d)", died, restart + 1, trainer.max_restarts)
            config = replace(config, trainer=resume_settings(trainer, folder, before))
    return run(config)


def resume_settings(trainer: Any, folder: Path, before: set[tuple[str, int]]) -> Any:
    """The settings to go on with: from the newest checkpoint in the folder, once the run has made the folder its own.

    `before`: what was `seen` there when the run began. Where that is still all, the run begins as it began.
    """
    now = checkpoint_ids(folder)
    return replace(trainer, resume_mode="auto", resume_from_path=None) if now and now != before else trainer


def checkpoint_ids(folder: Path) -> set[tuple[str, int]]:
    """The folder's checkpoints, by name and inode: a checkpoint that replaced another is not the same."""
    return {(path.name, path.stat().st_ino) for path in visible(folder).values()}
