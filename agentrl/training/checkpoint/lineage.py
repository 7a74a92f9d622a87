"""The checkpoints of a folder that belong to the run that writes there.

Invariants:
- the visible checkpoints of a folder are one lineage: each continues the one before it, so the highest step is the
  newest;
- a run that starts a new branch first moves the others to `superseded_<k>/` in the same folder. Nothing deletes them
  there, and no run resumes from them by itself;
- they are moved newest first: after a kill, those that are still visible are one lineage, too;
- while any record of the old branch is in its former folder, so is something that makes the next start move the rest.

Imports no PyTorch: the start of a run asks here before its servers are launched.
"""

import re
import shutil
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path

from agentrl.core.errors import UserError

FOLDER = "checkpoints"
"""Folder of the checkpoints, in the run's folder."""
SUPERSEDED, DAMAGED = "superseded", "damaged"

_NAME = re.compile(r"global_step_(\d+)")


class DamagedCheckpoint(UserError):
    """A file of a checkpoint is missing, or differs from its checksum."""

    def __init__(self, culprit: Path, why: str = "is damaged") -> None:
        super().__init__(culprit, why)
        self.trouble = f"{culprit} {why}"

    def __str__(self) -> str:
        return (
            f"{self.trouble}; resume from an older checkpoint with trainer.resume_mode=resume_path, or give "
            "`agentrl merge` an older one"
        )


def step_of(name: str) -> int | None:
    """The step of a checkpoint's folder; None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def visible(folder: Path) -> dict[int, Path]:
    """The checkpoints of the folder's lineage by step, also damaged ones. Only reads: a run may be writing there."""
    if not folder.is_dir():
        return {}
    folders = filter(Path.is_dir, folder.iterdir())
    return {step: path for path in folders if (step := step_of(path.name)) is not None}


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of the folder, or None. Changes nothing: a run may be writing there."""
    steps = visible(folder)
    return steps[max(steps)] if steps else None


def set_aside(
    folder: Path, after: int, label: str, *, moves: Mapping[Path, str] | None = None, copies: Iterable[Path] = ()
) -> Path | None:
    """Move the checkpoints above step `after` to a new folder `<label>_<k>/`; returns it, or None where nothing moved.

    `moves`: other files to move in this order, path -> name there. `copies`: files to copy to the moved checkpoints.
    """
    leaving = [path for step, path in sorted(visible(folder).items(), reverse=True) if step > after]
    if not leaving and (after or not moves):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / free_name(label, (path.name for path in folder.iterdir()))
    aside.mkdir()
    for file in filter(Path.exists, copies):
        shutil.copy2(file, aside)
    names = {path: path.name for path in leaving} | dict(moves or {})
    if after:  # after a kill, a start that finds no later checkpoint leaves the records alone: one goes last
        names[leaving[-1]] = names.pop(leaving[-1])
    for path, name in names.items():
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, aside / name)
    return aside


def free_name(label: str, taken: Iterable[str]) -> str:
    """The first of `<label>_1`, `<label>_2`, ... that is not taken."""
    names = set(taken)
    return next(name for number in count(1) if (name := f"{label}_{number}") not in names)
