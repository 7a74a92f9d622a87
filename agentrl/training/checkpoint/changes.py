"""What a run that goes on has set differently since its checkpoint was written.

Invariants: a setting that says which experiment this is (the model, the rows, what scores, the estimator, the tools)
stops a run that would go on by itself; any other difference is listed and applied. Whoever names the checkpoint
(trainer.resume_mode=resume_path) has decided, and only hears the list.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agentrl.config import to_yaml
from agentrl.config.keys import schema_keys
from agentrl.config.names import written
from agentrl.core.errors import UserError
from agentrl.core.remote_files import is_remote
from agentrl.tracking.loggers import CONFIG_FILE
from agentrl.training.checkpoint.folders import latest

EXPERIMENT = (
    "model.path",
    "model.tokenizer_path",
    "model.chat_template",
    "model.override_config",
    "model.lora_rank",
    "model.lora_alpha",
    "model.target_modules",
    "model.exclude_modules",
    "data.train_files",
    "data.train_max_samples",
    "data.shuffle",
    "data.seed",  # the order of the rows is in the checkpoint: another seed would do nothing
    "data.custom_cls",
    "algorithm.adv_estimator",
    "critic.model.path",
    "reward.custom_reward_function.path",
    "reward.custom_reward_function.name",
    "reward.custom_reward_function.reward_kwargs",
    "reward.reward_manager.name",
    "reward.reward_model.enable",
    "reward.reward_model.model.path",
    "rollout.multi_turn.enable",
    "rollout.multi_turn.tool_config_path",
    "rollout.multi_turn.function_tool_path",
    "rollout.multi_turn.interaction_config_path",
    "rollout.agent.default_agent_loop",
    "rollout.agent.agent_loop_config_path",
)
"""Settings, and sections, that say which experiment a run is."""

LOCATION = (
    "trainer.default_local_dir",
    "trainer.output_dir",
    "trainer.device",
    "trainer.rollout_data_dir",
    "trainer.validation_data_dir",
    "trainer.resume_mode",
    "trainer.resume_from_path",
)
"""Settings that say where a run is and how it starts."""

UNKNOWN = object()
SHOWN = 12
"""Differences that are listed."""
WIDEST = 60
"""Characters of a value that are shown."""


@dataclass(frozen=True)
class Change:
    """A setting with two values."""

    key: str
    old: Any
    new: Any

    @property
    def is_another_experiment(self) -> bool:
        """Whether what was learned with the old value does not go with the new one."""
        return any(self.key == key or self.key.startswith(f"{key}.") for key in EXPERIMENT)

    def __str__(self) -> str:
        return f"{self.key}: {_short(self.old)} -> {_short(self.new)}"


def check_changes(config: Any, checkpoints: Path) -> str | None:
    """The differences between `config` and the run that it goes on with, in one line; None: there are none.

    `checkpoints`: the folder of the run's own. Raises UserError where they make it another experiment.
    """
    checkpoint = _checkpoint(config.trainer, checkpoints)
    if checkpoint is None:
        return None
    settings = _settings_of(checkpoint)
    found = [] if settings is None else changes_since(settings, config)
    if config.trainer.resume_mode == "auto" and any(change.is_another_experiment for change in found):
        raise UserError(_refusal(checkpoint, found, checkpoints.parent))
    return f"settings changed since {checkpoint}: {_listed(found)}" if found else None


def changes(old: Mapping[str, Any], new: Mapping[str, Any], keys: Iterable[str]) -> list[Change]:
    """Which of `keys` have another value in `new`, those first that make it another experiment.

    A key that `old` lacks is not one: another version of agentrl wrote it.
    """
    values = ((key, _value(old, key), _value(new, key)) for key in keys if key not in LOCATION)
    found = [Change(*each) for each in values if each[1] is not UNKNOWN and not _same(each[1], each[2])]
    return sorted(found, key=lambda change: not change.is_another_experiment)


def changes_since(settings: Path, config: Any) -> list[Change]:
    """The same for a file of settings that a run has left. Raises UserError where it cannot be read."""
    return changes(_read(settings), yaml.safe_load(to_yaml(config)), _keys(config))


def _keys(config: Any) -> Iterable[str]:
    schema: type = type(config)
    return schema_keys(schema)


def _checkpoint(trainer: Any, checkpoints: Path) -> Path | None:
    """The checkpoint on this machine that a run will go on from."""
    if trainer.resume_mode == "auto":
        return latest(checkpoints)
    path = trainer.resume_from_path if trainer.resume_mode == "resume_path" else None
    return None if path is None or is_remote(path) else Path(path)


def _settings_of(checkpoint: Path) -> Path | None:
    """The settings of the run that wrote a checkpoint, as far as they are there."""
    folder = checkpoint.resolve().parent  # of a branch that was set aside, or the checkpoints of a run
    return next(filter(Path.is_file, (folder / CONFIG_FILE, folder.parent / CONFIG_FILE)), None)


def _read(file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        first = (str(error).splitlines() or ["?"])[0]
        raise UserError(f"{file} cannot be read ({first}): it says what the run was; fix it, or remove it") from None
    return found if isinstance(found, dict) else {}


def _value(settings: Mapping[str, Any], key: str) -> Any:
    node: Any = settings
    for name in key.split("."):
        node = node.get(name, UNKNOWN) if isinstance(node, dict) else UNKNOWN
    return node


def _same(old: Any, new: Any) -> bool:
    """Equal, or two names of one file."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return all(map(_same, old, new))
    if isinstance(old, str) and isinstance(new, str) and "\n" not in old + new:
        return old == new or (os.path.exists(new) and os.path.realpath(old) == os.path.realpath(new))
    return bool(old == new)


def _listed(found: list[Change]) -> str:
    more = len(found) - SHOWN
    return ", ".join(map(str, found[:SHOWN])) + (f" and {more} more" if more > 0 else "")


def _short(value: Any) -> str:
    text = written(value)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."


def _refusal(checkpoint: Path, found: list[Change], run_dir: Path) -> str:
    return (
        f"{run_dir} holds another experiment, which would go on from {checkpoint.name}: {_listed(found)}. For a new "
        "run, name another folder (trainer.experiment_name), or set trainer.resume_mode=disable, which sets the old "
        "one aside; to go on all the same, set trainer.resume_mode=resume_path "
        f"trainer.resume_from_path={checkpoint}"
    )
