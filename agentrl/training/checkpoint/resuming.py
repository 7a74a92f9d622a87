"""What a run goes on from, and what becomes of the checkpoints that it does not go on from.

Invariants:
- with resume_mode=auto the newest checkpoint that is whole is taken, and each damaged one is named; with resume_path
  only the one that is named;
- before a run takes its first step, its folder and the copies elsewhere show its own lineage alone.
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
from agentrl.training.checkpoint.folders import MANIFEST, DamagedCheckpoint
from agentrl.training.checkpoint.lineage import DAMAGED, SUPERSEDED, free_name, set_aside, step_of, visible

T = TypeVar("T")

WHAT = "trainer.default_hdfs_dir"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resuming:
    """The start of a run that writes its checkpoints to `folder`, as trainer.resume_mode and its neighbours say."""

    folder: Path
    mode: str
    path: str | None
    """trainer.resume_from_path."""
    remote: str | None = None
    """trainer.default_hdfs_dir."""

    def candidates(self) -> Iterator[Path]:
        """The checkpoints that the run may go on from, the best first. Raises UserError.

        A caller that asks for the next one has found the one before damaged.
        """
        if self.mode == "auto":
            checkpoints.tidy(self.folder)
            yield from self._newest_first()
        elif self.mode == "resume_path":
            yield self._named()

    def first(self, load: Callable[[Path], T], candidates: Iterable[Path]) -> tuple[Path, T] | None:
        """The first of the candidates that `load` can read, and what it gave; None where there are no candidates.

        Raises UserError when all of them are damaged, or the one that is named.
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
                log.warning("%s; the run goes on from %s", damaged.trouble, path.name)
            return path, found
        if refused:
            way = "for a new run, set trainer.resume_mode=disable"
            raise UserError(f"{refused[0].trouble}, and no checkpoint before it is whole; {way}")
        return None

    def claim(self, step: int, *, moves: Mapping[Path, str] | None = None, copies: Iterable[Path] = ()) -> None:
        """Make the folder, and the one elsewhere, the run's own: it goes on from `step`, 0 for a new run.

        Checkpoints that are no ancestors are set aside; `moves` and `copies` as `lineage.set_aside` has them, for a run
        that begins a new branch, or starts over.
        """
        checkpoints.tidy(self.folder)
        kept = self.kept(step)
        if self.mode == "auto" and step > 0:  # the same steps come again, in place of damaged ones
            aside = set_aside(self.folder, kept, DAMAGED)
        else:
            aside = set_aside(self.folder, kept, SUPERSEDED, moves=moves, copies=copies)
        if aside is not None:
            _say(aside, (path.name for path in aside.iterdir()))
        if self.remote is not None:
            _set_aside_elsewhere(self.remote, kept)

    def kept(self, step: int) -> int:
        """The last step of the folder's own lineage that a run which goes on from `step` continues; 0: none of it."""
        return step if self.mode == "auto" or self._within() else 0

    def _newest_first(self) -> Iterator[Path]:
        own = visible(self.folder)
        if own:
            yield own.pop(max(own))  # whole as a rule, and nothing else is looked at
        remote = {} if self.remote is None else _steps_of(complete(self.remote, MANIFEST, WHAT))
        for step in sorted({*own, *remote}, reverse=True):
            if step in own:
                yield own[step]
            if step in remote:
                set_aside(self.folder, step - 1, DAMAGED)  # all of these are, and one may have its name
                yield fetch(remote[step], WHAT, into=self.folder)

    def _named(self) -> Path:
        if self.path is None:
            raise UserError("trainer.resume_from_path is not set: name a checkpoint, or use trainer.resume_mode=auto")
        what = "trainer.resume_from_path"
        return fetch(self.path, what, marker=MANIFEST) if is_remote(self.path) else find(self.path, what=what)

    def _within(self) -> bool:
        """Whether the checkpoint that is named is one of the folder's lineage."""
        if self.path is None:
            return False
        if is_remote(self.path):
            return self.remote is not None and self.path.rstrip("/").rpartition("/")[0] == self.remote.rstrip("/")
        return self._named().resolve().parent == self.folder.resolve()


def newest(path: str) -> Path:
    """The checkpoint `path`, or the newest one of the run whose folder that is; what is elsewhere is fetched.

    Raises UserError.
    """
    return _newest_elsewhere(path.rstrip("/")) if is_remote(path) else _newest_here(Path(path))


def _newest_here(path: Path) -> Path:
    if (path / MANIFEST).is_file() or (step_of(path.name) is not None and path.is_dir()):
        return path
    return checkpoints.latest(path / checkpoints.FOLDER) or checkpoints.latest(path) or _none(path)


def _newest_elsewhere(url: str) -> Path:
    if step_of(url.rpartition("/")[2]) is not None:
        return fetch(url, "checkpoint", marker=MANIFEST)
    for folder in (f"{url}/{checkpoints.FOLDER}", url):
        if steps := _steps_of(complete(folder, MANIFEST, "checkpoint")):
            return fetch(steps[max(steps)], "checkpoint", marker=MANIFEST)
    return _none(url)


def _none(path: object) -> Path:
    raise UserError(f"{path} is no checkpoint, and holds none; name a folder global_step_<n>")


def _steps_of(urls: Iterable[str]) -> dict[int, str]:
    return {step: url for url in urls if (step := step_of(url.rpartition("/")[2])) is not None}


def _set_aside_elsewhere(url: str, after: int) -> None:
    steps = _steps_of(complete(url, MANIFEST, WHAT))
    leaving = sorted(step for step in steps if step > after)
    if not leaving:
        return
    aside = f"{url.rstrip('/')}/{free_name(SUPERSEDED, folders(url, WHAT))}"
    for step in leaving:
        move(steps[step], f"{aside}/{steps[step].rpartition('/')[2]}", WHAT)
    _say(aside, (f"global_step_{step}" for step in leaving))


def _say(aside: object, names: Iterable[str]) -> None:
    steps = sorted(step for name in names if (step := step_of(name)) is not None)
    if not steps:
        log.warning("Set aside the run that was here, which saved no checkpoint: all of it is now in %s", aside)
        return
    listed = ", ".join(map(str, steps)) if len(steps) < 6 else f"{steps[0]} to {steps[-1]}"
    what = f"checkpoints of steps {listed} are" if len(steps) > 1 else f"checkpoint of step {listed} is"
    log.warning("Set aside what this run does not go on from: the %s now in %s", what, aside)
