"""Settings and files that changed since the checkpoint of a resumed run was written.

Invariants: with resume_mode=auto, a changed setting of the experiment (model, rows, reward, estimator, tools) and an
edited file of it stop the run; any other change is listed and applied. With resume_mode=resume_path every change is
listed and applied: the user named the checkpoint. No change is applied where no step is left to take.
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agentrl.config import to_yaml
from agentrl.config.keys import Key, mark_in, marked, schema_keys
from agentrl.config.names import translate, written
from agentrl.config.schema.marks import PathKind
from agentrl.core.errors import UserError, plural
from agentrl.core.foreign import read_yaml
from agentrl.core.remote_files import is_remote
from agentrl.core.row_sources import split_source
from agentrl.tracking.loggers import CONFIG_FILE, RECORD_FILE
from agentrl.training.checkpoint.contents import Contents, contents_of, differing, read_record
from agentrl.training.checkpoint.lineage import latest, step_of

EXPERIMENT = (
    *("model.override_config", "model.lora_", "model.target_", "model.exclude_modules"),
    *("data.train_max_samples", "data.shuffle", "data.custom_cls"),
    "data.seed",  # the order of the rows is in the checkpoint: another seed would do nothing
    *("actor.optim.optimizer", "critic.optim.optimizer", "optim.optimizer", "algorithm.adv_estimator"),
    *("reward.custom_reward_function", "reward.functions", "reward.reward_manager.name", "reward.reward_model.enable"),
    *("rollout.multi_turn.enable", "rollout.agent.default_agent_loop"),
)
"""First part of the settings that define the experiment; those that name its input do, too."""
APART = ("data.val_", "validation")
"""First part of the names of input that training does not read."""
LOCATION = ("trainer.device", "trainer.resume_")
"""First part of the settings of the run's start: changes in them do not count, nor in those that name output."""
LATER = (PathKind.LATER, PathKind.OUTPUT)
"""Paths that are no input of the experiment."""

LENGTH = ("trainer.total_training_steps", "trainer.total_epochs", "data.")
"""Settings that the number of steps depends on."""

log = logging.getLogger(__name__)

UNKNOWN = object()
SHOWN = 12
"""Most changes that are listed."""
WIDEST = 60
"""Most characters of a value that are shown."""


@dataclass(frozen=True)
class Change:
    """A setting with its old and its new value; or one, or an argument of the Python API, whose files were edited."""

    key: str
    old: Any
    new: Any
    edited: list[str] = field(default_factory=list)
    """The names of its files or objects that were edited."""

    @property
    def is_another_experiment(self) -> bool:
        """Whether the setting defines the experiment, or training reads what was edited."""
        names_input = bool(self.edited) or marked(PathKind).get(self.key, PathKind.LATER) not in LATER
        return self.key.startswith(EXPERIMENT) or (names_input and not self.key.startswith(APART))

    def __str__(self) -> str:
        if self.edited:
            return f"{', '.join(self.edited)} {'was' if len(self.edited) == 1 else 'were'} edited ({self.key})"
        return f"{self.key}: {_short(self.old)} -> {_short(self.new)}"


@dataclass(frozen=True)
class Resumption:
    """The start of a run from a checkpoint."""

    changes: str = ""
    """One line; empty where nothing changed."""
    finished: int = 0
    """The number of all its steps, where none is left."""

    def say_changes(self) -> None:
        """Log the changes, if there are any."""
        if self.changes:
            log.warning("%s", self.changes)


NEW_RUN = Resumption()


def check_changes(config: Any, checkpoints: Path, objects: Any = None) -> Resumption:
    """The changes between `config` with the caller's `objects` and the run that it resumes.

    `checkpoints`: the run's checkpoint folder. Raises UserError where a change makes it another experiment, and for a
    change where no step is left.
    """
    checkpoint = _checkpoint(config.trainer, checkpoints)
    settings = None if checkpoint is None else _settings_of(checkpoint)
    if checkpoint is None or settings is None:
        return NEW_RUN
    found, (_, total) = changes_since(settings, config, contents_of(config, objects)), _read_record(settings)
    ends = total > 0 and step_of(checkpoint.name) == total and settings.parent.samefile(checkpoints.parent)
    ends = ends and _is_whole(checkpoint)  # a damaged one is not the end: the run takes its steps again
    if ends and found and not any(change.key.startswith(LENGTH) for change in found):
        raise UserError(_finished(checkpoints.parent, total, found))
    if config.trainer.resume_mode == "auto" and any(change.is_another_experiment for change in found):
        raise UserError(_refusal(checkpoint, found, checkpoints.parent))
    listed = f"settings changed since {checkpoint}: {_listed(found)}" if found else ""
    return Resumption(listed, total if ends and not found else 0)


def check_steps_left(config: Any, contents: Contents | None, total: int, checkpoint: Path, step: int) -> None:
    """Raises UserError where a run under other settings resumes from a checkpoint with no step left of `total`."""
    settings = _settings_of(checkpoint)
    if step >= total and settings is not None and (found := changes_since(settings, config, contents)):
        raise UserError(_finished(checkpoint, step, found))


def changes(old: Mapping[str, Any], new: Mapping[str, Any], keys: Mapping[str, Key]) -> list[Change]:
    """The `keys` whose value differs in `new`; those that define the experiment come first.

    A key that `old` lacks, or where it has a value that no longer sets it, does not count: another version of agentrl
    wrote `old`.
    """
    values = ((key, _value(old, key), _value(new, key)) for key in keys if not _is_location(keys[key]))
    known = [each for each in values if each[1] is not UNKNOWN and translate(each[0], each[1], keys).path]
    found = [Change(*each) for each in known if not _same(each[1], each[2])]
    return sorted(found, key=lambda change: not change.is_another_experiment)


def changes_since(settings: Path, config: Any, contents: Contents | None = None) -> list[Change]:
    """The changes since the settings file of a run; with `contents`, edits too. Raises UserError for a damaged file."""
    schema: type = type(config)
    found = changes(_read(settings), read_yaml(to_yaml(config)), schema_keys(schema))
    before, _ = _read_record(settings)
    if contents is None or not before:
        return found
    moved = {key for key, digests in contents.items() if digests == before.get(key)}
    found = [change for change in found if change.key not in moved or not _same_names(change.old, change.new)]
    named = {change.key for change in found}
    edited = [(key, differing(before[key], contents[key])) for key in contents if key in before and key not in named]
    return [*(Change(key, None, None, names) for key, names in edited if names), *found]


def _checkpoint(trainer: Any, checkpoints: Path) -> Path | None:
    """The local checkpoint that a run will resume from."""
    if trainer.resume_mode == "auto":
        return latest(checkpoints)
    path = trainer.resume_from_path if trainer.resume_mode == "resume_path" else None
    return None if path is None or is_remote(path) else Path(path)


def _is_whole(checkpoint: Path) -> bool:
    """Whether the files of a checkpoint have their sizes; loading it compares the checksums, too."""
    try:
        files = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))["files"]
        return all((checkpoint / name).stat().st_size == stamp[0] for name, stamp in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return False


def _settings_of(checkpoint: Path) -> Path | None:
    """The settings file of the run that wrote a checkpoint; None where it is missing."""
    folder = checkpoint.resolve().parent  # checkpoints of a run, or of a branch that was set aside
    return next(filter(Path.is_file, (folder / CONFIG_FILE, folder.parent / CONFIG_FILE)), None)


def _read_record(settings: Path) -> tuple[Contents, int]:
    return read_record(settings.with_name(RECORD_FILE))


def _read(file: Path) -> dict[str, Any]:
    try:
        found = read_yaml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        first = (str(error).splitlines() or ["?"])[0]
        raise UserError(
            f"{file} cannot be read ({first}): it has the settings of the run to resume; fix it, or remove it"
        ) from None
    return found if isinstance(found, dict) else {}


def _is_location(key: Key) -> bool:
    return key.path.startswith(LOCATION) or mark_in(key.marks, PathKind) is PathKind.OUTPUT


def _value(settings: Mapping[str, Any], key: str) -> Any:
    node: Any = settings
    for name in key.split("."):
        node = node.get(name, UNKNOWN) if isinstance(node, dict) else UNKNOWN
    return node


def _same(old: Any, new: Any) -> bool:
    """Whether two values are equal, or name the same file."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return all(map(_same, old, new))
    if isinstance(old, str) and isinstance(new, str) and "\n" not in old + new:
        sources = split_source(old), split_source(new)
        if sources[0] and sources[1] and sources[0][0] == sources[1][0]:
            old, new = sources[0][1], sources[1][1]
        return old == new or (os.path.exists(new) and os.path.realpath(old) == os.path.realpath(new))
    return bool(old == new)


def _same_names(old: Any, new: Any) -> bool:
    """Whether paths, or lists of them, differ in their folders alone."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return all(map(_same_names, old, new))
    return os.path.basename(str(old)) == os.path.basename(str(new))


def _listed(found: list[Change]) -> str:
    more = len(found) - SHOWN
    return ", ".join(map(str, found[:SHOWN])) + (f" and {more} more" if more > 0 else "")


def _short(value: Any) -> str:
    text = written(value)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."


def _refusal(checkpoint: Path, found: list[Change], run_dir: Path) -> str:
    return (
        f"{run_dir} has another experiment, and this run would resume its {checkpoint.name}: {_listed(found)}. "
        f"{ANOTHER}; to resume anyway, set trainer.resume_mode=resume_path trainer.resume_from_path={checkpoint}"
    )


def _finished(place: Path, steps: int, found: list[Change]) -> str:
    return (
        f"{place} has finished, after {plural(steps, 'step')} under other settings: {_listed(found)}. {ANOTHER}; to "
        "train on under these settings, raise trainer.total_training_steps or trainer.total_epochs"
    )


ANOTHER = (
    "For a new run, name another folder (trainer.experiment_name), or set trainer.resume_mode=disable, which sets the "
    "old one aside"
)
