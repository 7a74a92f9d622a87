"""Restart a run that lost a process or a machine from its newest checkpoint."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from agentrl.core.errors import InfraError
from agentrl.training.checkpoint.lineage import visible

T = TypeVar("T")

PASSES = ("actor", "ppo_max_token_len_per_gpu"), ("trainer", "max_token_len_per_gpu")
"""Section and key of the tokens of a pass: of `agentrl train`, of `agentrl sft`."""

log = logging.getLogger(__name__)


class WorkerDied(InfraError):
    """A process of the run died; its work since the last checkpoint is lost."""

    counts = True
    """Whether the restart is one of `trainer.max_restarts`."""


class RanksFailed(WorkerDied):
    """A call failed on some ranks, or in the middle: their states differ, and some may wait for the others."""


class PassTooLarge(WorkerDied):
    """A pass of a rank does not fit into its GPU's memory, and the other ranks wait for it."""

    counts = False  # each has smaller passes than the one before

    def __init__(self, message: str, tokens: int) -> None:
        """`tokens`: of the passes from now on."""
        super().__init__(message, tokens)
        self.tokens = tokens

    def __str__(self) -> str:
        return str(self.args[0])


def run_with_restarts(run: Callable[[Any], T], config: Any, folder: Path) -> T:
    """`run(config)`, restarted from the newest checkpoint in `folder` after WorkerDied: `trainer.max_restarts` times,
    and as often as it takes after deaths that do not count.

    Raises WorkerDied when no restart is left.
    """
    restarts = Restarts(config, folder)
    while True:
        try:
            return run(restarts.config)
        except WorkerDied as died:
            restarts.after(died)


class Restarts:
    """The settings of a run: the initial ones, then those of each restart."""

    def __init__(self, config: Any, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.taken = 0
        self._before = checkpoint_ids(folder)

    def after(self, died: WorkerDied) -> None:
        """Set the settings of the next restart. Raises `died` after `trainer.max_restarts` of them."""
        most = self.config.trainer.max_restarts
        if self.taken >= most and died.counts:
            raise died
        self.taken += died.counts
        number = f" (restart {self.taken} of {most})" if died.counts else ""
        log.warning("%s; the run resumes by itself%s", died, number)
        now, trainer = checkpoint_ids(self.folder), self.config.trainer
        if now and now != self._before:  # else the run has written none, and starts as before
            trainer = replace(trainer, resume_mode="auto", resume_from_path=None)
        self.config = replace(self.config, trainer=trainer)
        if isinstance(died, PassTooLarge):
            log.warning("out of GPU memory: passes have at most %d tokens from now on", died.tokens)
            name, key = PASSES[not hasattr(self.config, "actor")]
            self.config = replace(self.config, **{name: replace(getattr(self.config, name), **{key: died.tokens})})


def checkpoint_ids(folder: Path) -> set[tuple[str, int]]:
    """The folder's checkpoints by name and inode: a replaced checkpoint has another id."""
    return {(path.name, path.stat().st_ino) for path in visible(folder).values()}
