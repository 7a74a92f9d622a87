"""Checks that files and folders of keys exist, before slow work starts."""

import re
from pathlib import Path
from typing import Any

from agentrl.config.given import file_named, is_given
from agentrl.config.schema import Data, Model, Reward, Rollout, Trainer
from agentrl.config.schema.sft import SftData
from agentrl.core.errors import UserError
from agentrl.core.remote_files import is_remote, known_scheme
from agentrl.core.resources import find
from agentrl.core.row_sources import split_source

HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def data_files(data: Data) -> None:
    """Rows and the dataset class."""
    for name in ("train_files", "val_files"):
        for path in as_list(getattr(data, name)):
            row_file(f"data.{name}", path)
    custom_class(data)


def custom_class(data: Data | SftData) -> None:
    """The dataset class: its file, and both of its keys or none."""
    custom_cls = data.custom_cls
    python_file("data.custom_cls.path", custom_cls.path)
    if bool(custom_cls.path) != bool(custom_cls.name):
        given, lacking = ("path", "name") if custom_cls.path else ("name", "path")
        raise UserError(f"data.custom_cls.{given} is set without data.custom_cls.{lacking}: set both")


def as_list(value: Any) -> list[Any]:
    """None: nothing; one thing: a list of it."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def row_file(key: str, path: Any) -> None:
    """Raises UserError when a file of rows cannot be there."""
    if not isinstance(path, str):
        raise UserError(f"{key}: {path!r} is not a path; give a file or a list of files")
    if is_given(path) or split_source(path):
        return None
    if is_remote(path):
        return known_scheme(path, key)
    try:
        find(path, what=key)
    except UserError as error:
        raise UserError(f"{error}; `agentrl data --help` shows how to write one") from None


def existing(key: str, path: str | None) -> None:
    """Raises UserError when `path` is set and not there."""
    path = file_named(path)
    if path is not None and is_remote(path):
        known_scheme(path, key)
    elif path is not None:
        find(path, what=key)


def python_file(key: str, path: str | None) -> None:
    """A file of code, or an importable module (`package.module`)."""
    path = file_named(path)
    if path is not None and (path.endswith(".py") or ("/" in path and not path.startswith("pkg://"))):
        find(path, what=key)


def model_files(model: Model) -> None:
    """The model's folder, where the path cannot be a hub id, and the template."""
    template = model.chat_template
    existing("model.chat_template", None if template and "{" in template else template)
    for name in ("path", "tokenizer_path"):
        path = getattr(model, name)
        if path is None or Path(path).expanduser().exists() or HUB_ID.fullmatch(path):
            continue
        if is_remote(path):
            known_scheme(path, f"model.{name}")
            continue
        raise UserError(f"model.{name}: {path} does not exist; `agentrl model --help` shows how to prepare one")


def rollout_files(rollout: Rollout) -> None:
    """YAML and Python files of tools, interactions and agent loops."""
    for name in ("tool_config_path", "function_tool_path", "interaction_config_path"):
        existing(f"rollout.multi_turn.{name}", getattr(rollout.multi_turn, name))
    existing("rollout.agent.agent_loop_config_path", rollout.agent.agent_loop_config_path)


def reward_files(reward: Reward) -> None:
    """The reward functions' files, and the reward manager's."""
    python_file("reward.custom_reward_function.path", reward.custom_reward_function.path)
    for name, term in reward.functions.items():
        python_file(f"reward.functions.{name}.path", term.path)
    reward_manager = reward.reward_manager
    python_file("reward.reward_manager.module.path", reward_manager.module.path)


def resume(trainer: Trainer) -> None:
    """Check the checkpoint to resume from."""
    by_path = trainer.resume_mode == "resume_path"
    if by_path and trainer.resume_from_path is None:
        raise UserError("trainer.resume_mode=resume_path needs trainer.resume_from_path: the checkpoint's folder")
    if not by_path and trainer.resume_from_path is not None:
        raise UserError(
            f"trainer.resume_from_path is set, but trainer.resume_mode={trainer.resume_mode} does not look at it: "
            "set trainer.resume_mode=resume_path"
        )
    existing("trainer.resume_from_path", trainer.resume_from_path)
