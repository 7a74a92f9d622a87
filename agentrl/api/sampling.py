"""`agentrl.rollout`: trajectories without training."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from agentrl.api.border import short_errors
from agentrl.api.settings import Given, Overrides, Reward, Rows, experiment, log_notes, set_key, settings
from agentrl.config import SAMPLING
from agentrl.config.schema import Config
from agentrl.data import load_dataset
from agentrl.doctor.preflight import preflight
from agentrl.evaluation.settings import scoring_something, untrained
from agentrl.rollout.user_objects import UserObjects
from agentrl.runtime import Runtime, open_runtime
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
        set_key(settled, "rollout.n", n)
    objects = experiment(settled, Given(tools, interactions, reward, rows), SAMPLING)
    with sampler(settled, objects) as runtime:
        chosen = chosen_rows(settled, objects, runtime, settled.data.train_files, limit)
        return fetch(runtime.rollouts.sample(chosen, 0, lambda _: None))


@contextmanager
def sampler(config: Config, objects: UserObjects) -> Iterator[Runtime]:
    """A runtime whose engine has the model's weights; it scores where something does. Raises UserError."""
    log_notes(preflight(config))
    scored = config if objects.reward is not None else scoring_something(config)
    with closing(open_runtime(untrained(scored), objects)) as runtime:
        runtime.publish_weights(0)
        yield runtime


def chosen_rows(config: Config, objects: UserObjects, runtime: Runtime, files: Any, limit: int | None) -> Sequence[Row]:
    """The first `limit` of the rows that were passed, or of those in `files`."""
    rows = objects.rows if objects.rows is not None else load_dataset(config.data, files, runtime.tokenizer)
    return [rows[i] for i in range(len(rows) if limit is None else min(limit, len(rows)))]
