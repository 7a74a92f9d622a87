"""`agentrl.train` and `agentrl.training`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.api.border import short_errors
from agentrl.api.result import Result
from agentrl.api.run import TrainingRun
from agentrl.api.settings import Given, Overrides, Reward, Rows, experiment, log_notes, settings
from agentrl.config.schema import Config
from agentrl.doctor.preflight import check_enough_rows, preflight_training
from agentrl.rewards.checks import RUN
from agentrl.tracking.callbacks import Step


@short_errors
def train(
    config: Overrides = None,
    *,
    preset: str = "train",
    config_dir: str | Path | None = None,
    tools: Any = None,
    interactions: Any = None,
    reward: Reward | None = None,
    rows: Rows | None = None,
    validation_rows: Rows | None = None,
    on_step: Callable[[Step], object] | None = None,
) -> Result:
    """Train a model and return the result. The same as `agentrl train`, in a script, a notebook or a test.

    Args:
        config: Settings: a `Settings`, a `Config`, a list of "key=value", or a dict, nested or dotted.
        preset: Name of the YAML file that the settings start from.
        config_dir: Folder with files of your own, looked in first.
        tools: A YAML or Python file, or a list of tools: `BaseTool` classes or objects, functions, files.
        interactions: A YAML file, or a list of simulated users: `BaseInteraction` classes or objects, functions, files.
        reward: The reward function, "file.py:name" or "module:name"; a list or a dict (by name) of several, each alone
            or as (function, weight): the reward is their weighted sum, and each is logged as `reward/NAME`.
        rows: Training rows: files, or dicts such as {"prompt": "2 + 3?", "answer": "5"} in anything that iterates.
        validation_rows: The same for validation.
        on_step: Called with each `Step` when it is done. An exception ends the run, with that step saved.

    Raises:
        UserError: in one line, for a mistake in settings, rows or tools, or where the folder is in use.
        InfraError: where tools, engines or sandboxes fail too often.
        KeyboardInterrupt: where Ctrl-C or SIGTERM stops the run; what is learned is saved first.

    Example:
        result = agentrl.train({"model.path": "models/warm"}, rows=[{"prompt": "2 + 3?", "answer": "5"}], reward=score)
        print(result.metrics["rollout/reward_mean"], result.checkpoint)
    """
    run = training(
        config,
        preset=preset,
        config_dir=config_dir,
        tools=tools,
        interactions=interactions,
        reward=reward,
        rows=rows,
        validation_rows=validation_rows,
    )
    for step in run.steps(pauses=False):
        if on_step is not None:
            on_step(step)
    return run.result


@short_errors
def training(
    config: Overrides = None,
    *,
    preset: str = "train",
    config_dir: str | Path | None = None,
    tools: Any = None,
    interactions: Any = None,
    reward: Reward | None = None,
    rows: Rows | None = None,
    validation_rows: Rows | None = None,
) -> TrainingRun:
    """A run whose loop is yours: iterate it for its steps. Arguments and errors are those of `train`.

    Nothing is loaded before the first step, or before `with` opens the run.

    Example:
        for step in agentrl.training("model.path=models/warm", rows=rows, reward=score):
            print(step.number, step.metrics["rollout/reward_mean"])
    """
    settled = settings(config, Config, preset=preset, config_dir=config_dir)
    parts = experiment(settled, Given(tools, interactions, reward, rows, validation_rows), RUN)
    log_notes(preflight_training(settled))
    if parts.rows is not None and not settled.trainer.val_only:
        check_enough_rows(settled, len(parts.rows))
    return TrainingRun(settled, parts)
