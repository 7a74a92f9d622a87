"""Settings of a run that samples and does not train."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl.config.schema import Config
from agentrl.core.errors import UserError, plural
from agentrl.rewards.checks import something_scores
from agentrl.rollout.user_objects import NO_OBJECTS, UserObjects
from agentrl.tracking.dumps.records import Record
from agentrl.trajectory.row import Row

if TYPE_CHECKING:
    from agentrl.runtime.runtime import Runtime

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


def replayed(rows: Sequence[Row], record: Record, turn: int) -> list[Row]:
    """The row of a dumped trajectory, with all messages before the model's turn `turn` (from 1) as its prompt. Raises
    UserError."""
    messages, begin = record["messages"], len(record["prompt"])
    turns = [i for i, message in enumerate(messages) if i >= begin and message["role"] == "assistant"]
    if turn > len(turns):
        raise UserError(f"--from-turn {turn}: {record['key']} has {plural(len(turns), 'turn')}")
    prompt = messages[: turns[turn - 1]]
    if record["uid"] is None:  # another program's
        return [Row(record["key"], prompt, data_source="atif")]
    uid = f":{record['uid']}"  # a set of data.val_sets puts its name before the uid
    found = [replace(row, prompt=prompt) for row in rows if uid.endswith(f":{row.uid}")]
    if not found:
        raise UserError(f"--replay: {record['uid']} is not among the rows; --split and data.train_files choose them")
    return found


@contextmanager
def sampler(config: Config, objects: UserObjects = NO_OBJECTS) -> "Iterator[Runtime]":
    """A runtime whose engine has the model's weights; it scores where something does. Raises UserError."""
    from agentrl.runtime.opening import open_runtime  # imports PyTorch, which takes seconds

    scored = config if objects.reward is not None else scoring_something(config)
    with closing(open_runtime(untrained(scored), objects)) as runtime:
        runtime.publish_weights(0)
        yield runtime
