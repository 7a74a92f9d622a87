"""`agentrl.evaluate`: figures for a model, or for answers that are stored."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from agentrl.api.border import short_errors
from agentrl.api.sampling import chosen_rows, sampler
from agentrl.api.settings import Given, Overrides, Reward, Rows, experiment, is_files, set_key, settings
from agentrl.config import ANSWERING
from agentrl.config.overrides import plain
from agentrl.config.schema.evaluation import EvalConfig
from agentrl.core.errors import UserError
from agentrl.data.given import numbered
from agentrl.evaluation.generating import CHUNK
from agentrl.evaluation.report import Report, RowScores, reports
from agentrl.evaluation.settings import scoring_something
from agentrl.evaluation.stored import Answered, answered, read_answers, row_scores, scored
from agentrl.rollout.user_objects import UserObjects
from agentrl.runtime.runtime import Runtime
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory


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
        set_key(settled, "rollout.n", n)
    if rows is not None and is_files(rows):
        settled.data.path, rows = plain(rows), None
    stored = settled.model.path is None
    objects = experiment(settled, Given(tools, interactions, reward, None if stored else rows), ANSWERING)
    found = _of_stored(settled, objects, rows, limit) if stored else _of_model(settled, objects, limit)
    return {report.data_source: report for report in reports(found, settled.evaluation)}


def _of_stored(config: EvalConfig, objects: UserObjects, rows: Any, limit: int | None) -> list[RowScores]:
    if rows is None and not config.data.path:
        raise UserError("nothing to evaluate: pass rows, or set data.path, and model.path where a model answers them")
    held = read_answers(config.data) if rows is None else _answers(config, cast(Iterable[Any], rows))
    return scored(config, held[:limit], objects)


def _answers(config: EvalConfig, rows: Iterable[Any]) -> list[Answered]:
    return [answered(dict(record), config.data, uid) for uid, record in numbered(rows)]


def _of_model(config: EvalConfig, objects: UserObjects, limit: int | None) -> list[RowScores]:
    if objects.rows is None:
        config.data.train_files = config.data.path  # where rows are looked at for what they are, they are these
    if objects.rows is None and not config.data.path:
        raise UserError("nothing to evaluate: pass rows, or set data.path")
    if objects.reward is None and scoring_something(config) is not config:
        raise UserError("nothing scores the answers: pass reward, or set reward.custom_reward_function.path")
    with sampler(config, objects) as runtime:
        rows = chosen_rows(config, objects, runtime, config.data.path, limit)
        groups = [group for start in range(0, len(rows), CHUNK) for group in _groups(runtime, rows[start:][:CHUNK])]
    return [row_scores(group, config.evaluation) for group in groups]


def _groups(runtime: Runtime, rows: Sequence[Row]) -> list[list[Trajectory]]:
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in runtime.rollouts.sample(rows, 0, lambda _: None):
        groups.setdefault(trajectory.row.uid, []).append(trajectory)
    return list(groups.values())
