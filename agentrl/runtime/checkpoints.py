"""Checkpoints of a run: every part that has a state, saved together and found again together."""

from collections.abc import Callable, Mapping
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


@dataclass
class Checkpoints:
    """Saves and finds the parts of a run under its folder."""

    trainer: Trainer
    parts: Mapping[str, Stateful]
    write_model: Callable[[Path], None]
    """Fills a folder with the policy in Hugging Face format."""

    def save(self, step: int) -> None:
        """Write the checkpoint of `step`, then drop the oldest beyond `trainer.max_actor_ckpt_to_keep`."""
        state = {name: part.state_dict() for name, part in self.parts.items()}
        checkpoints.save(self._folder, step, state, self.write_model)
        checkpoints.prune(self._folder, self.trainer.max_actor_ckpt_to_keep)

    def resume(self) -> int:
        """Put every part where `trainer.resume_mode` says; returns the step to go on from, 0 for a new run."""
        trainer = self.trainer
        path = checkpoints.source(self._folder, trainer.resume_mode, trainer.resume_from_path)
        if path is None:
            return 0
        step, state = checkpoints.load(path)
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        return step

    @property
    def _folder(self) -> Path:
        return Path(self.trainer.default_local_dir) / FOLDER
