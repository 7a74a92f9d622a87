"""`agentrl.train` and `agentrl.training`, and `agentrl.sft`: a warm-up on demonstrations."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from agentrl.api.border import short_errors
from agentrl.api.result import Result
from agentrl.api.run import TrainingRun
from agentrl.api.settings import Given, Overrides, Reward, Rows, experiment, is_files, log_notes, settings
from agentrl.config.given import plain
from agentrl.config.schema import Config
from agentrl.config.schema.sft import SftConfig
from agentrl.config.validate import SUPERVISED, validate
from agentrl.core.errors import UserError
from agentrl.core.json_text import to_json
from agentrl.core.outputs import ROWS, write_atomic
from agentrl.doctor.preflight import check_enough_rows, preflight_sft, preflight_training
from agentrl.rewards.checks import RUN
from agentrl.sft import sft as run_sft
from agentrl.tracking.callbacks import Step
from agentrl.training.checkpoint.run_start import supervise
from agentrl.training.sft.contract import SftResult


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
    run = _run(config, preset, config_dir, Given(tools, interactions, reward, rows, validation_rows))
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
    return _run(config, preset, config_dir, Given(tools, interactions, reward, rows, validation_rows))


def _run(config: Overrides, preset: str, config_dir: str | Path | None, given: Given) -> TrainingRun:
    settled = settings(config, Config, preset=preset, config_dir=config_dir)
    parts = experiment(settled, given, RUN)
    log_notes(preflight_training(settled))
    if parts.rows is not None and not settled.trainer.val_only:
        check_enough_rows(settled, len(parts.rows))
    return TrainingRun(settled, parts)


@short_errors
def sft(
    config: Any = None,
    *,
    preset: str = "sft",
    config_dir: str | Path | None = None,
    rows: Rows | None = None,
    validation_rows: Rows | None = None,
    on_step: Callable[[int, int, dict[str, float]], object] | None = None,
) -> SftResult:
    """Train a model on conversations and write it to `trainer.output_dir`. The same as `agentrl sft`.

    Args:
        config: Settings: an `SftConfig`, a list of "key=value", or a dict, nested or dotted.
        preset: Name of the YAML file that the settings start from.
        config_dir: Folder with files of your own, looked in first.
        rows: Conversations: files, or dicts such as {"messages": [...]} or {"prompt": ..., "response": ...}. Objects
            are written to the model's folder first, for all processes to read; they must be JSON.
        validation_rows: The same for validation.
        on_step: Called after each step with (step, all steps, metrics: loss, grad_norm, lr, tokens, val_loss).

    Returns:
        Where the model is (`path`), the last loss, and how many conversations it learned from.

    Raises:
        UserError: in one line, for a mistake in settings or rows, or where the folder is in use.
        KeyboardInterrupt: where Ctrl-C or SIGTERM stops the run; a checkpoint is saved first.

    Example:
        result = agentrl.sft("model.path=models/base trainer.output_dir=models/warm".split(), rows=conversations)
        print(result.path, result.final_loss)
    """
    settled = settings(config, SftConfig, preset=preset, config_dir=config_dir)
    for name, given in (("train_files", rows), ("val_files", validation_rows)):
        if given is not None:
            files = plain(given) if is_files(given) else _written(settled, cast(Iterable[Any], given))
            setattr(settled.data, name, files)
    log_notes(validate(settled, SUPERVISED))
    preflight_sft(settled)

    on_each = on_step or (lambda *_: None)
    return supervise(lambda config: run_sft(config, on_each), settled, "trainer.output_dir")


def _written(config: SftConfig, rows: Iterable[Any]) -> str:
    """Write the rows to a file that is named after their content; its path."""
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise UserError(f"rows is a {type(rows).__name__}: pass a list of conversations")
    lines = [to_json(dict(row)) + "\n" for row in rows]
    name = hashlib.sha256("".join(lines).encode()).hexdigest()[:12]
    file = Path(config.trainer.output_dir) / ROWS / f"{name}.jsonl"
    write_atomic(file, lines)
    return str(file)
