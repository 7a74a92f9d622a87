"""Choose the checkpoint that a run resumes from; set the others aside.

Invariants:
- resume_mode=auto takes the newest complete checkpoint and reports each damaged one; resume_path takes the named one
  only;
- before the first step of a run, its folder and the remote copies show its own lineage only.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from agentrl.core.errors import UserError
from agentrl.core.remote_files import complete, fetch, folders, is_remote, move
from agentrl.core.resources import find
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.checkpoint import lineage
from agentrl.training.checkpoint.folders import MANIFEST
from agentrl.training.checkpoint.lineage import FOLDER, DamagedCheckpoint, step_of

T = TypeVar("T")

WHAT = "trainer.default_hdfs_dir"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resuming:
    """The start of a run with checkpoints in `folder`, by trainer.resume_mode and related keys."""

    folder: Path
    mode: str
    path: str | None
    """trainer.resume_from_path."""
    remote: str | None = None
    """trainer.default_hdfs_dir."""

    def candidates(self) -> Iterator[Path]:
        """The checkpoints to resume from, best first. Raises UserError.

        A caller asks for the next one only where the one before is damaged.
        """
        if self.mode == "auto":
            checkpoints.tidy(self.folder)
            yield from self._newest_first()
        elif self.mode == "resume_path":
            yield self._named()

    def first(self, load: Callable[[Path], T], candidates: Iterable[Path]) -> tuple[Path, T] | None:
        """(path, loaded) of the first candidate that `load` can read; None without candidates.

        Raises UserError when all are damaged, or the named one is.
        """
        refused: list[DamagedCheckpoint] = []
        for path in candidates:
            try:
                found = load(path)
            except DamagedCheckpoint as error:
                if self.mode != "auto":
                    raise
                refused.append(error)
                continue
            for damaged in refused:
                log.warning("%s; resuming from %s", damaged.trouble, path.name)
            return path, found
        if refused:
            fix = "for a new run, set trainer.resume_mode=disable"
            raise UserError(f"{refused[0].trouble}, and no older checkpoint is complete; {fix}")
        return None

    def claim(self, step: int, *, moves: Mapping[Path, str] | None = None, copies: Iterable[Path] = ()) -> None:
        """Set aside all checkpoints, local and remote, that the run does not continue; it resumes from `step` (0: new).

        `moves` and `copies`: as in `lineage.set_aside`, for a run that starts a new branch or starts over.
        """
        checkpoints.tidy(self.folder)
        kept = self.kept(step)
        if self.remote is not None:  # before the local ones: after a kill, the next run still has all of these
            _set_aside_remote(self.remote, kept)
        if self.mode == "auto" and step > 0:  # the run takes the steps of damaged checkpoints again
            aside = lineage.set_aside(self.folder, kept, lineage.DAMAGED)
        else:
            aside = lineage.set_aside(self.folder, kept, lineage.SUPERSEDED, moves=moves, copies=copies)
        if aside is not None:
            _log_set_aside(aside, (path.name for path in aside.iterdir()))

    def kept(self, step: int) -> int:
        """The last step in the folder that a run resuming from `step` continues; 0: none."""
        return step if self.mode == "auto" or self._in_lineage() else 0

    def _newest_first(self) -> Iterator[Path]:
        own = lineage.visible(self.folder)
        if own:
            yield own.pop(max(own))  # usually complete: then nothing else is read
        remote = {} if self.remote is None else _steps_of(complete(self.remote, MANIFEST, WHAT))
        for step in sorted({*own, *remote}, reverse=True):
            if step in own:
                yield own[step]
            if step in remote:
                # Newer ones are damaged, and one may have its name.
                lineage.set_aside(self.folder, step - 1, lineage.DAMAGED)
                yield fetch(remote[step], WHAT, into=self.folder)

    def _named(self) -> Path:
        if self.path is None:
            raise UserError("trainer.resume_from_path is not set: name a checkpoint, or use trainer.resume_mode=auto")
        what = "trainer.resume_from_path"
        return fetch(self.path, what, marker=MANIFEST) if is_remote(self.path) else find(self.path, what=what)

    def _in_lineage(self) -> bool:
        """Whether the named checkpoint belongs to the folder's lineage."""
        if self.path is None:
            return False
        if is_remote(self.path):
            return self.remote is not None and self.path.rstrip("/").rpartition("/")[0] == self.remote.rstrip("/")
        return self._named().resolve().parent == self.folder.resolve()


def newest(path: str) -> Path:
    """The checkpoint `path`, or the newest one of the run folder `path`; a remote one is fetched. Raises UserError."""
    if is_remote(path):
        return _newest_remote(path.rstrip("/"))
    place = Path(path).parent if Path(path).name in ("actor", "huggingface") else Path(path)
    if (place / MANIFEST).is_file() or (step_of(place.name) is not None and place.is_dir()):
        return place
    return lineage.latest(place / FOLDER) or lineage.latest(place) or _none(place)


def _newest_remote(url: str) -> Path:
    if step_of(url.rpartition("/")[2]) is not None:
        return fetch(url, "checkpoint", marker=MANIFEST)
    for folder in (f"{url}/{FOLDER}", url):
        if steps := _steps_of(complete(folder, MANIFEST, "checkpoint")):
            return fetch(steps[max(steps)], "checkpoint", marker=MANIFEST)
    return _none(url)


def _none(path: object) -> Path:
    raise UserError(f"{path} is no checkpoint, and has none; name a folder global_step_<n>")


def _steps_of(urls: Iterable[str]) -> dict[int, str]:
    return {step: url for url in urls if (step := step_of(url.rpartition("/")[2])) is not None}


def _set_aside_remote(url: str, after: int) -> None:
    steps = _steps_of(complete(url, MANIFEST, WHAT))
    leaving = sorted((step for step in steps if step > after), reverse=True)
    if not leaving:
        return
    aside = f"{url.rstrip('/')}/{lineage.free_name(lineage.SUPERSEDED, folders(url, WHAT))}"
    for step in leaving:
        move(steps[step], f"{aside}/{steps[step].rpartition('/')[2]}", WHAT)
    _log_set_aside(aside, (f"global_step_{step}" for step in leaving))


def _log_set_aside(aside: object, names: Iterable[str]) -> None:
    steps = sorted(step for name in names if (step := step_of(name)) is not None)
    if not steps:
        log.warning("Set aside the run that was here, which saved no checkpoint: all its files are now in %s", aside)
        return
    numbers = ", ".join(map(str, steps)) if len(steps) < 6 else f"{steps[0]} to {steps[-1]}"
    listed = f"checkpoints of steps {numbers} are" if len(steps) > 1 else f"checkpoint of step {numbers} is"
    log.warning("Set aside, not resumed from: the %s now in %s", listed, aside)
