"""Checkpoints of a run: all parts with a state, saved and restored together."""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentrl.config.schema import Trainer
from agentrl.core.stopping import Interrupted
from agentrl.tracking.resume_notes import how_to_resume
from agentrl.tracking.superseded import superseded_records
from agentrl.training.checkpoint.lineage import FOLDER, latest, visible
from agentrl.training.checkpoint.resuming import Resuming
from agentrl.training.checkpoint.save_schedule import SaveSchedule

MARGIN = 1.1
"""Free disk space that an automatic checkpoint needs, as a multiple of its size."""
GIB = 2**30

log = logging.getLogger(__name__)


class Stateful(Protocol):
    """A part of the run whose state a restart must restore."""

    def state_dict(self) -> dict[str, Any]:
        """Plain data and tensors."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` gave."""


class CheckpointedLearner(Protocol):
    """The learner, as `Runtime` shows it."""

    def save(self, folder: Path, step: int, state: dict[str, Any], last: bool, model_only: bool) -> None:
        """Write the checkpoint of a step, or with `model_only` the model."""

    def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        """Restore a checkpoint: (its step, its state)."""


@dataclass
class Checkpoints:
    """Saves and restores the parts of a run in its folder."""

    trainer: Trainer
    learner: CheckpointedLearner
    """Model and optimizer; each of its processes writes its own share."""
    parts: Mapping[str, Stateful]
    """The other parts of the run, by name."""
    results: Callable[[], Iterable[Path]] = tuple
    """Other files of a finished run that a new one replaces."""
    taken: int = 0
    """The last step that the weights have learned from."""
    _full: bool = False

    def __post_init__(self) -> None:
        self._folder = Path(self.trainer.default_local_dir) / FOLDER
        self._schedule = SaveSchedule(self.trainer.save_freq)

    def save(self, step: int, *, last: bool = False, finished: bool = False) -> None:
        """Write the checkpoint of `step`; the `last` one is on disk when this returns.

        `finished`: no step is left; where trainer.save_freq asks for no checkpoints, only the model is kept."""
        state = {name: part.state_dict() for name, part in self.parts.items()}
        with self._schedule.saving():
            self.learner.save(self._folder, step, state, last, finished and self._schedule.none)

    def due(self, step: int) -> bool:
        """Whether trainer.save_freq asks for a checkpoint after `step`; automatic ones need free disk space."""
        return self._schedule.due(step) and (not self._schedule.automatic or self._room())

    def newest(self) -> int:
        """The step of the newest checkpoint in the run's folder; 0: there is none."""
        return max(visible(self._folder), default=0)

    def has(self, step: int) -> bool:
        """Whether the checkpoint of `step` is in the run's folder."""
        return step in visible(self._folder)

    def folder(self, step: int) -> Path:
        """The checkpoint of `step`, which is there."""
        return visible(self._folder)[step]

    def resume(self, check: Callable[[Path, int], None] | None = None) -> int:
        """Restore every part from the checkpoint that `trainer.resume_mode` selects; returns its step, 0 for a new run.

        `check` gets the checkpoint and its step before anything is moved. Checkpoints that the run does not resume from
        are set aside, except with `val_only`.
        """
        trainer = self.trainer
        resuming = Resuming(self._folder, trainer.resume_mode, trainer.resume_from_path, trainer.default_hdfs_dir)
        path, (step, state) = resuming.first(self.learner.load, resuming.candidates()) or (None, (0, {}))
        if path is not None and check is not None and not trainer.val_only:
            check(path, step)
        for name, part in self.parts.items():
            if name in state:
                part.load_state_dict(state[name])
        if not trainer.val_only:
            self._claim(resuming, step)
        self.taken = step
        return step

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """Context of all steps after `resume`. Raises Interrupted with a command to resume, where it is interrupted."""
        start, mode = self.taken, self.trainer.resume_mode
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted(how_to_resume(start, self.taken, self.newest(), mode)) from None

    def _claim(self, resuming: Resuming, step: int) -> None:
        trainer = self.trainer
        dumps = trainer.rollout_data_dir, trainer.validation_data_dir
        home, kept = Path(trainer.default_local_dir), resuming.kept(step)
        used = [home / "sessions/taken"] if trainer.resume_mode == "disable" else []  # by the rows of another run
        moves, copies = superseded_records(home, kept, dumps, results=[*self.results(), *used])
        resuming.claim(step, moves=moves, copies=copies)

    def _room(self) -> bool:
        """Whether the disk has room for a checkpoint as large as the newest; True where there is none yet."""
        newest = latest(self._folder)
        size = 0 if newest is None else sum(file.stat().st_size for file in newest.rglob("*") if file.is_file())
        enough = newest is None or shutil.disk_usage(newest).free > size * MARGIN
        if not enough and not self._full:
            log.warning(
                "no room for another %.1f GiB beside %s: no checkpoint is saved until there is", size / GIB, newest
            )
        self._full = not enough
        return enough
