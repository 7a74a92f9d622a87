"""Settings of a run that samples and does not train."""

from dataclasses import replace
from typing import Any, TypeVar

from agentrl.config.schema import Config
from agentrl.core.errors import UserError
from agentrl.rewards.checks import something_scores

Settings = TypeVar("Settings", bound=Config)


def scoring_something(config: Settings) -> Settings:
    """`config`, with a reward function that gives every answer 0 where nothing scores."""
    try:
        something_scores(config.reward, config.rollout, config.data)
    except UserError:
        reward = config.reward
        function = replace(reward.custom_reward_function, name="agentrl.evaluation.generating:unscored")
        return replace(config, reward=replace(reward, custom_reward_function=function))
    return config


def untrained(config: Settings) -> Settings:
    """`config` without updates: the policy's parameters stay in `model.dtype`."""
    return replace(config, trainer=replace(config.trainer, val_only=True))


def of_split(config: Settings, split: str) -> Settings:
    """`config` with the rows of `split`, "train" or "val", alone: the others need not be right."""
    others: dict[str, Any] = {"val_files": None, "val_sets": {}} if split == "train" else {"train_files": None}
    return replace(config, data=replace(config.data, **others))
