"""`agentrl.rollout`: trajectories without training. `agentrl.evaluate`: figures for a model, or for stored answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.api.border import short_errors
from agentrl.api.settings import Given, Overrides, Reward, Rows, experiment, is_files, log_notes, settings
from agentrl.config.given import plain
from agentrl.config.schema import Config
from agentrl.config.schema.evaluation import EvalConfig
from agentrl.config.validate import ANSWERING, SAMPLING
from agentrl.core.errors import UserError
from agentrl.core.grouping import grouped
from agentrl.data import load_dataset
from agentrl.doctor.preflight import preflight
from agentrl.evaluation.generating import CHUNK
from agentrl.evaluation.settings import sampler, scoring_something
from agentrl.evaluation.stored import answered, read_answers, scored
from agentrl.rollout.user_objects import UserObjects
from agentrl.runtime.runtime import Runtime
from agentrl.tracking.estimates import Report, RowScores, reports, row_scores
from agentrl.trajectory.row import Row
from agentrl.trajectory.store import fetch
from agentrl.trajectory.trajectory import Trajectory


@short_errors
def rollout(
    config: Overrides = None,
    *,
    preset: str = "train",
    config_dir: str | Path | None = None,
    tools: Any = None,
    interactions: Any = None,
    reward: Reward | None = None,
    rows: Rows | None = None,
    n: int | None = None,
    limit: int | None = None,
) -> list[Trajectory]:
    """Sample `n` trajectories a row with the model as it is, and score them; nothing is trained or written.

    Args:
        config: Settings, as for `train`; so are `preset`, `config_dir`, `tools`, `interactions`, `reward` and `rows`.
        n: Trajectories a row; None: `rollout.n`.
        limit: The first so many rows; None: all.

    Returns:
        The trajectories, group by group in the order of the rows, each with its messages, ledgers, reward and outcome.
        Without anything that scores, each reward is 0.

    Raises:
        UserError: in one line, for a mistake in settings, rows or tools.
        InfraError: where all trajectories failed.

    Example:
        for trajectory in agentrl.rollout("model.path=models/warm", rows=[{"prompt": "2 + 3?"}], n=4):
            print(trajectory.reward, trajectory.messages[-1]["content"], trajectory.ledgers[0].ids)
    """
    settled = settings(config, Config, preset=preset, config_dir=config_dir)
    if n is not None:
        settled.rollout.n = n
    objects = experiment(settled, Given(tools, interactions, reward, rows), SAMPLING)
    log_notes(preflight(settled))
    with sampler(settled, objects) as runtime:
        chosen = chosen_rows(settled, objects, runtime, limit)
        return fetch(runtime.rollouts.sample(chosen, 0, lambda _: None))


def chosen_rows(config: Config, objects: UserObjects, runtime: Runtime, limit: int | None) -> Sequence[Row]:
    """The first `limit` of the rows that were passed, or of `data.train_files`; in an evaluation, of `data.path`."""
    key, files = next(iter(config.data.files().items()))
    rows = load_dataset(config.data, files, runtime.tokenizer, what=key) if objects.rows is None else objects.rows
    return rows[:limit]


@short_errors
def evaluate(
    config: Overrides = None,
    *,
    preset: str = "eval",
    config_dir: str | Path | None = None,
    tools: Any = None,
    interactions: Any = None,
    reward: Reward | None = None,
    rows: Rows | None = None,
    n: int | None = None,
    limit: int | None = None,
) -> dict[str, Report]:
    """Score a model's answers to rows, or answers that are in the rows; `agentrl eval` does the same from files.

    Args:
        config: Settings, as for `train`, and those of `agentrl eval`; with `model.path` the model answers the rows,
            without it they have a column `responses` (a string, or a list of them).
        n: Answers a row; None: `rollout.n`.
        limit: The first so many rows; None: all.

    Returns:
        A `Report` (mean score, pass@k, confidence intervals, answers without a score) by `data_source`, and one under
        "all" where there are several.

    Raises:
        UserError: in one line, for a mistake in settings, rows or tools, or where nothing scores.
        InfraError: where all answers failed.

    Example:
        report = agentrl.evaluate("model.path=models/warm", rows=rows, reward=score, n=4)["unknown"]
        print(report.mean.value, report.passes[4].value)
    """
    settled = settings(config, EvalConfig, preset=preset, config_dir=config_dir)
    if n is not None:
        settled.rollout.n = n
    if rows is not None and is_files(rows):
        settled.data.path, rows = plain(rows), None
    if rows is None and not settled.data.path:
        raise UserError("nothing to evaluate: pass rows, or set data.path, and model.path where a model answers them")
    stored = settled.model.path is None
    objects = experiment(settled, Given(tools, interactions, reward, None if stored else rows), ANSWERING)
    found = _of_stored(settled, objects, rows, limit) if stored else _of_model(settled, objects, limit)
    return {report.data_source: report for report in reports(found, settled.evaluation)}


def _of_stored(config: EvalConfig, objects: UserObjects, rows: Any, limit: int | None) -> list[RowScores]:
    if rows is None:
        return scored(config, read_answers(config.data)[:limit], objects)
    held = [answered(dict(row), config.data, f"rows:{number}") for number, row in enumerate(rows, 1)]
    return scored(config, held[:limit], objects)


def _of_model(config: EvalConfig, objects: UserObjects, limit: int | None) -> list[RowScores]:
    if objects.reward is None and scoring_something(config) is not config:
        raise UserError("nothing scores the answers: pass reward, or set reward.custom_reward_function.path")
    log_notes(preflight(config))
    with sampler(config, objects) as runtime:
        rows = chosen_rows(config, objects, runtime, limit)
        parts = (rows[start:][:CHUNK] for start in range(0, len(rows), CHUNK))
        answers = [trajectory for part in parts for trajectory in runtime.rollouts.sample(part, 0, lambda _: None)]
    groups = grouped(answers, lambda trajectory: trajectory.row.uid).values()
    return [row_scores(group, config.evaluation) for group in groups]
