"""The checkpoints of a folder that belong to the run that writes there.

Invariants:
- the visible checkpoints of a folder are one lineage: each continues the one before it, so the highest step is the
  newest;
- a run that starts a new branch first moves the others to `superseded_<k>/` in the same folder. Nothing deletes them
  there, and no run resumes from them by itself;
- the move is atomic: a plan is written, then carried out. Checkpoints in a plan are no longer visible; after a kill,
  the next process that writes to the folder completes the plan.

Imports no PyTorch: the start of a run asks here before its servers are launched.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path

from agentrl.core.errors import UserError
from agentrl.core.inside import is_inside, read_inside
from agentrl.core.outputs import write_atomic

FOLDER = "checkpoints"
"""Folder of the checkpoints, in the run's folder."""
SUPERSEDED, DAMAGED = "superseded", "damaged"
PLAN = ".set-aside.json"
FIX = "remove that file"

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
    leaving = _plan(folder)
    shown = (path for path in folder.iterdir() if path.name not in leaving and path.is_dir())
    return {step: path for path in shown if (step := step_of(path.name)) is not None}


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of the folder, or None. Changes nothing: a run may be writing there."""
    steps = visible(folder)
    return steps[max(steps)] if steps else None


def set_aside(
    folder: Path, after: int, label: str, *, moves: Mapping[Path, str] | None = None, copies: Iterable[Path] = ()
) -> Path | None:
    """Move the checkpoints above step `after` to a new folder `<label>_<k>/`; returns it, or None where nothing moved.

    `moves`: other files to move, path -> name there. `copies`: files to copy to the moved checkpoints.
    """
    leaving = {path: path.name for step, path in sorted(visible(folder).items()) if step > after}
    targets = leaving | dict(moves or {})
    if not leaving and (after or not targets):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / free_name(label, (path.name for path in folder.iterdir()))
    aside.mkdir()
    for file in filter(Path.exists, copies):
        shutil.copy2(file, aside)
    plan = {os.path.relpath(path, folder): f"{aside.name}/{name}" for path, name in targets.items()}
    write_atomic(folder / PLAN, [json.dumps(plan, indent=1)])
    complete_plan(folder)
    return aside


def complete_plan(folder: Path) -> None:
    """Carry out the rest of an interrupted plan. Raises UserError, and moves nothing, where it is no plan of a run."""
    plan = _plan(folder)
    for move in plan.items():
        _within_run(folder, *move)
    for move in plan.items():
        origin, target = _within_run(folder, *move)  # again: what was moved may be a link
        if origin.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(origin, target)
    if plan:
        (folder / PLAN).unlink()


def free_name(label: str, taken: Iterable[str]) -> str:
    """The first of `<label>_1`, `<label>_2`, ... that is not taken."""
    names = set(taken)
    return next(name for number in count(1) if (name := f"{label}_{number}") not in names)


def _within_run(folder: Path, origin: str, target: str) -> tuple[Path, Path]:
    """The moves of a plan, from the run's folder into a folder of its checkpoints. Raises UserError."""
    folder, source = Path(os.path.normpath(folder)), Path(os.path.normpath(folder / origin))
    home = folder if source.parent == folder else folder.parent
    fits = source not in (folder, *folder.parents) and is_inside(source.parent, home)
    if not fits or not is_inside(folder / target, folder):
        raise UserError(f"{folder / PLAN} moves {origin!r} to {target!r}, outside of the run; {FIX}")
    return source, folder / target


def _plan(folder: Path) -> dict[str, str]:
    """The plan: path -> target, both relative to the folder. Raises UserError for a file that is none."""
    file = folder / PLAN
    try:
        moves = json.loads(read_inside(file, folder)) if file.exists() else {}
        return {str(origin): str(target) for origin, target in moves.items()}
    except (ValueError, AttributeError, RecursionError):
        raise UserError(f"{file} is no plan of agentrl; {FIX}") from None
