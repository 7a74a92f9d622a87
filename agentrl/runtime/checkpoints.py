"""Checkpoints of a run: every part that has a state, saved together and found again together."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentrl.config.schema import Trainer
from agentrl.training import checkpoints

FOLDER = "checkpoints"


class Stateful(Protocol):
    """A part of the run that a restart must find as it was."""

    def state_dict(self) -> dict[str, Any]:
        """Plain data and tensors."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""


class Learned(Protocol):
    """What trains, as `Runtime` describes it."""

    def save(self, folder: Path, step: int, state: dict[str, Any], last: bool) -> None:
        """Write the checkpoint of a step."""

    def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        """Go on from a checkpoint."""


@dataclass
class Checkpoints:
    """Saves and finds the parts of a run under its folder."""

    trainer: Trainer
    learner: Learned
    """What trains; every process of it writes its own share."""
    parts: Mapping[str, Stateful]
    """What else the run is made of."""

    def save(self, step: int, *, last: bool = False) -> None:
        """Write the checkpoint of `step`; the `last` one is there when this returns, however it is written."""
        state = {name: part.state_dict() for name, part in self.parts.items()}
        self.learner.save(self._folder, step, state, last)

    def resume(self) -> int:
        """Put every part where `trainer.resume_mode` says; returns the step to go on from, 0 for a new run."""
        trainer = self.trainer
        path = checkpoints.source(self._folder, trainer.resume_mode, trainer.resume_from_path)
        if path is None and trainer.resume_mode == "auto" and trainer.default_hdfs_dir is not None:
            path = checkpoints.fetch_latest(trainer.default_hdfs_dir, self._folder)
        if path is None:
            return 0
        step, state = self.learner.load(path)
        for name, part in self.parts.items():
            if name in state:
                part.load_state_dict(state[name])
        if trainer.del_local_ckpt_after_load:
            shutil.rmtree(path)
        return step

    @property
    def _folder(self) -> Path:
        return folder_of(self.trainer)


def folder_of(trainer: Trainer) -> Path:
    """Where the checkpoints of a run lie."""
    return Path(trainer.default_local_dir) / FOLDER
