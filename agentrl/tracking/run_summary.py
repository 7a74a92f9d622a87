"""The end of a run as a person sees it: figures before and after, the same prompt before and after, and where all is.

Read back from the run's own files, so that a run that was interrupted and resumed closes like an unbroken one.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from agentrl.config.schema import Trainer
from agentrl.tracking import before_after_table, conversation, load_trajectories, read_metrics, summary
from agentrl.tracking.dumps import dump_file
from agentrl.tracking.loggers import METRICS_FILE

Record = dict[str, Any]
Decode = Callable[[Sequence[int]], str]
PROMPT = 800
"""Longest prompt to show, in characters: long tool schemas would fill the screen."""


def closing(trainer: Trainer, decode: Decode) -> Iterator[RenderableType]:
    """Text to print after the last step, without parts that were not recorded."""
    run_dir = Path(trainer.default_local_dir)
    validated = [m for m in _metrics(run_dir) if any(name.startswith("val/") for name in m)]
    if validated and validated[0]["step"] < validated[-1]["step"]:
        first, last = validated[0], validated[-1]
        yield before_after_table(first, last)
        yield from _conversations(trainer, decode, int(first["step"]), int(last["step"]))
    dumps = {"training trajectories": trainer.rollout_data_dir, "validation trajectories": trainer.validation_data_dir}
    yield summary(run_dir, dumps=dumps)


def _metrics(run_dir: Path) -> list[dict[str, float]]:
    file = run_dir / METRICS_FILE
    return read_metrics(file) if file.exists() else []


def _conversations(trainer: Trainer, decode: Decode, first: int, last: int) -> Iterator[RenderableType]:
    if trainer.validation_data_dir is None or trainer.log_val_generations < 1:
        return
    files = [dump_file(trainer.validation_data_dir, step) for step in (first, last)]
    if not all(file.exists() for file in files):
        return
    before, after = ({record["key"].split("/", 1)[1]: record for record in load_trajectories(file)} for file in files)
    shared = sorted(before.keys() & after.keys(), key=lambda key: _gain(before[key], after[key]))
    for key in shared[: trainer.log_val_generations]:
        yield conversation(before[key], decode, title=f"before (step {first})", max_prompt=PROMPT)
        yield conversation(after[key], decode, title=f"after (step {last})", max_prompt=PROMPT)


def _gain(before: Record, after: Record) -> float:
    """Sort key: smallest for the prompt that improved most."""
    return (before["reward"] or 0.0) - (after["reward"] or 0.0)
