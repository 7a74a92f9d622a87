"""Makes settings and objects of the arguments of the Python API.

Invariant: an object replaces the files that the settings name, and the settings keep a name for it (`config.given`).
"""

import hashlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from agentrl.api.typed import Settings, SftSettings, given_keys
from agentrl.config import resolve
from agentrl.config.given import Objects, given, plain
from agentrl.config.schema import Config
from agentrl.config.schema.reward import RewardFunction, RewardTerm
from agentrl.config.validate import Check, validate
from agentrl.core.cpu_cores import wait_passively
from agentrl.core.errors import UserError, plural
from agentrl.core.json_text import to_json
from agentrl.data.given import given_rows
from agentrl.rewards.checks import scores_are_trained_on
from agentrl.rewards.function import DEFAULT_NAME, RewardFn, function_name, names_function, reward_function
from agentrl.rewards.managers import server_arguments, takes_lists
from agentrl.rewards.ready_made import SOURCE_FUNCTION, function_for
from agentrl.rewards.truths import check_truths
from agentrl.rollout.user_objects import UserObjects
from agentrl.tools.loading import check_tools, given_name
from agentrl.training.checkpoint.exported import use_checkpoints
from agentrl.trajectory.row import Row

log = logging.getLogger(__name__)

C = TypeVar("C")

Overrides = Settings | SftSettings | Config | Sequence[str] | Mapping[str, Any] | str | None
"""Settings, a Config, `key=value` texts, values by key (nested or dotted), or one text; None: nothing."""
Rows = str | Path | Iterable[Any]
"""Files, or rows as objects."""
OneReward = str | Callable[..., Any]
"""A function, `file.py:name`, or `module:name`."""
Reward = OneReward | list[Any] | tuple[Any, ...] | Mapping[str, Any]
"""One reward, or a list or a dict (by name) of several, each alone or as (reward, weight)."""

FIRST = 100
"""Rows that a digest reads."""


@dataclass
class Given:
    """Objects that a caller passes; None: the settings name files."""

    tools: Any = None
    interactions: Any = None
    reward: Reward | None = None
    rows: Rows | None = None
    validation_rows: Rows | None = None


def settings(config: Overrides, schema: type[C], *, preset: str, config_dir: str | Path | None) -> C:
    """The settings, not checked yet: a copy of `config`, or what it makes of `preset`. Raises UserError."""
    if "torch" not in sys.modules:
        wait_passively(os.environ)
    if isinstance(config, schema):
        return use_checkpoints(Objects().settle(config))
    if isinstance(config, Config):
        raise UserError(f"a {type(config).__name__} does not fit here: pass a {schema.__name__}, or overrides")
    given_here = given_keys(config)
    config = config if given_here is None else given_here
    texts: Any = [config] if isinstance(config, str) else ({} if config is None else config)
    folder = None if config_dir is None else str(config_dir)
    resolved = resolve(texts, config_name=preset, config_dir=folder, schema=schema, checks=())
    log_notes(resolved.notes)
    return cast(C, use_checkpoints(resolved.config))


def experiment(config: C, objects: Given, checks: Iterable[Check]) -> UserObjects:
    """The objects of a run, and their names in `config`, which is then checked. Raises UserError."""
    settled: Any = config
    passed = UserObjects(
        tools=_tools(settled, objects.tools),
        interactions=_interactions(settled, objects.interactions),
        reward=_reward(settled, objects.reward),
        rewards=_rewards(settled, objects.reward),
        rows=_rows(settled, objects.rows, "rows", "train_files", objects.interactions),
        validation=_rows(settled, objects.validation_rows, "validation_rows", "val_files", objects.interactions),
    )
    _score_by_source(settled, passed)
    if passed.rows and passed.rows[0].scores_itself:
        checks = [check for check in checks if check is not scores_are_trained_on]
    log_notes(validate(settled, checks))
    if passed.rows and callable(passed.reward):
        kwargs = settled.reward.custom_reward_function.reward_kwargs
        check_truths(passed.rows[:FIRST], [_checked(settled, passed.reward, kwargs)])
    return passed


def log_notes(notes: Iterable[str]) -> None:
    """Log the notes on the settings as warnings."""
    for note in notes:
        log.warning("%s", note)


def path_or_list(value: Any, what: str) -> list[Any]:
    """One path, or the members of a list. Raises UserError."""
    if isinstance(value, str | Path):
        return [value]
    if callable(value) or isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise UserError(f"{what}={value!r}: pass a list")
    return list(value)


def _tools(config: Any, tools: Any) -> list[Any] | None:
    if tools is None:
        return None
    items, section = path_or_list(tools, "tools"), config.rollout.multi_turn
    section.tool_config_path = section.function_tool_path = None
    if not _is_one_file(items):
        check_tools(None, None, items)
    functions = _is_one_file(items) and str(items[0]).endswith(".py")
    return _named(section, "function_tool_path" if functions else "tool_config_path", items)


def _interactions(config: Any, interactions: Any) -> list[Any] | None:
    if interactions is None:
        return None
    items = path_or_list(interactions, "interactions")
    return _named(config.rollout.multi_turn, "interaction_config_path", items)


def _is_one_file(items: list[Any]) -> bool:
    return len(items) == 1 and isinstance(items[0], str | Path)


def _named(section: Any, key: str, items: list[Any]) -> list[Any] | None:
    """Name the one file, or the objects, under `key`; an empty list means that there are none. Returns the objects."""
    section.enable = section.enable or bool(items)
    names = ", ".join(map(given_name, items))
    setattr(section, key, (names if _is_one_file(items) else given(names)) if items else None)
    return None if _is_one_file(items) else items or None


def _reward(config: Any, reward: Reward | None) -> Callable[..., Any] | None:
    if reward is None or isinstance(reward, list | tuple | Mapping):
        return None
    config.reward.functions = {}
    section = config.reward.custom_reward_function
    if isinstance(reward, str):
        section.path, section.name = _file_and_name(reward)
        return None
    _checked(config, reward, section.reward_kwargs)
    section.path, section.name = given(function_name(reward)), function_name(reward)
    return reward


def _checked(config: Any, reward: Any, kwargs: Mapping[str, Any]) -> RewardFn:
    """A function as the run's reward manager calls it. Raises UserError."""
    offered = server_arguments(config.reward.reward_model)
    return reward_function(reward, kwargs, batch=takes_lists(config.reward), offered=offered)


def _file_and_name(reward: str) -> tuple[str, str]:
    path, _, name = reward.rpartition(":") if ":" in reward else (reward, "", DEFAULT_NAME)
    return path, name


def _rewards(config: Any, rewards: Reward | None) -> dict[str, Callable[..., Any]]:
    """Name several functions in `reward.functions`; those of them that are objects."""
    if not isinstance(rewards, list | tuple | Mapping):
        return {}
    config.reward.custom_reward_function, config.reward.functions = RewardFunction(), {}
    objects: dict[str, Callable[..., Any]] = {}
    for given_as, item in rewards.items() if isinstance(rewards, Mapping) else ((None, item) for item in rewards):
        reward: OneReward
        reward, weight = item if isinstance(item, tuple) and len(item) == 2 else (item, 1.0)
        path, function = _file_and_name(reward) if isinstance(reward, str) else ("", function_name(reward))
        name = given_as or function
        if name in config.reward.functions:
            raise UserError(f"two reward functions are called {name}: pass a dict with a name for each")
        if not isinstance(reward, str):
            _checked(config, reward, {})
            path, objects[name] = given(function), reward
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise UserError(f"reward {name}: the weight is {weight!r}; pass (function, number)")
        config.reward.functions[name] = RewardTerm(path, function, float(weight))
    return objects


def _rows(config: Any, rows: Rows | None, what: str, name: str, interactions: Any) -> Sequence[Row] | None:
    if rows is None:
        return None
    if is_files(rows):
        setattr(config.data, name, plain(rows))
        return None
    one = isinstance(interactions, list | tuple) and len(interactions) == 1
    found = given_rows(cast(Iterable[Any], rows), name=what, data=config.data, interaction=one)
    setattr(config.data, name, given(f"{plural(len(found), 'row')}, {digest(found)}"))
    return found


def is_files(rows: Rows) -> bool:
    """Whether they are paths."""
    files = list(rows) if isinstance(rows, list | tuple) else [rows]
    return bool(files) and all(isinstance(file, str | Path) for file in files)


def digest(rows: Sequence[Row]) -> str:
    """A digest of the prompts and the ground truth of the first rows: another data set has another."""
    first = [[row.prompt, row.ground_truth] for row in rows[:FIRST]]
    return hashlib.sha256(to_json(first, lambda value: type(value).__name__).encode()).hexdigest()[:8]


def _score_by_source(config: Any, passed: UserObjects) -> None:
    """Score rows of a well-known data set by its own reward function, where no other is named."""
    named = config.reward.custom_reward_function
    if passed.rows is None or names_function(config.reward) or named.name != DEFAULT_NAME:
        return
    if function_for(passed.rows[0].data_source) is not None:
        named.name = SOURCE_FUNCTION
