"""The end of a run as a person sees it: figures before and after, the same prompts before and after, and its files.

Read back from the run's own files, so that a run that was interrupted and resumed closes like an unbroken one.
"""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from agentrl.core.paths import shown
from agentrl.tracking.conversation import conversation
from agentrl.tracking.dumps.jsonl import dump_file, load_trajectories
from agentrl.tracking.dumps.text import Decode
from agentrl.tracking.fields import Field, count, figure, share
from agentrl.tracking.lines import sources
from agentrl.tracking.loggers import CONFIG_FILE, METRICS_FILE, TENSORBOARD_DIR, read_metrics

if TYPE_CHECKING:
    from agentrl.config.schema import Trainer

CHECKPOINTS = "checkpoints"
PROMPT = 800
"""Longest prompt to show, in characters: long tool schemas would fill the screen."""


COMPARISONS = (
    Field("success", ("success",), share, better=1),
    Field("pass@n", ("pass_at_n",), share, better=1),
    Field("reward", ("reward_mean",), figure, better=1),
    Field("turns", ("turns_mean",), count),
    Field("tool calls", ("tools/calls",), count),
    Field("call errors", ("tools/model_error",), share, better=-1),
    Field("response tokens", ("response_tokens_mean",), count),
    Field("truncated", ("truncated",), share, better=-1),
)
"""Validation metrics with a row in the table."""


def closing(trainer: "Trainer", decode: Decode | None) -> Iterator[RenderableType]:
    """Text to print after the last step, without parts that were not recorded; without `decode`, no conversations."""
    run_dir = Path(trainer.default_local_dir)
    validated = [m for m in read_metrics(run_dir / METRICS_FILE) if any(name.startswith("val/") for name in m)]
    if validated and validated[0]["step"] < validated[-1]["step"]:
        first, last = validated[0], validated[-1]
        yield before_after_table(first, last)
        yield from () if decode is None else _conversations(trainer, decode, int(first["step"]), int(last["step"]))
    dumps = {"training trajectories": trainer.rollout_data_dir, "validation trajectories": trainer.validation_data_dir}
    yield summary(run_dir, dumps=dumps)
    if any((run_dir / CHECKPOINTS).glob("global_step_*")):
        place = shlex.quote(shown(run_dir))
        yield Text(f"try it: agentrl rollout model.path={place} ...\nexport it: agentrl merge {place} FOLDER", "dim")


def before_after_table(before: Mapping[str, float], after: Mapping[str, float]) -> Table:
    """Two results of `validation_metrics` side by side; per data source too if there are several."""
    table = Table(box=SIMPLE_HEAD, header_style="dim")
    table.add_column("held-out rows")
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right")
    for row in COMPARISONS:
        _add(table, row, f"val/{row.names[0]}", row.label, before, after)
    by_source = sources(after)
    for source in by_source if len(by_source) > 1 else ():
        _add(table, COMPARISONS[0], f"val/{source}/success", f"success on {source}", before, after)
    return table


def summary(run_dir: Path, *, dumps: Mapping[str, Path | str | None] | None = None) -> Table:
    """Existing files of a run by kind. `dumps`: further folders by kind."""
    table = Table.grid(padding=(0, 2, 0, 0))
    saved = (run_dir / CHECKPOINTS).glob("global_step_*")
    places = {
        "configuration": run_dir / CONFIG_FILE,
        "metrics": run_dir / METRICS_FILE,
        "tensorboard": run_dir / TENSORBOARD_DIR,
        "newest checkpoint": max(saved, key=lambda path: (len(path.name), path.name), default=None),
        **(dumps or {}),
    }
    for what, path in places.items():
        if path is not None and Path(path).exists():
            table.add_row(Text(what, "dim"), Text(shown(path), overflow="fold"))
    return table


def _add(
    table: Table, row: Field, name: str, label: str, before: Mapping[str, float], after: Mapping[str, float]
) -> None:
    if name not in after or (name == "val/tools/calls" and not before.get(name) and not after[name]):
        return  # no tools: none before, none after
    shown = row.show(after[name])
    if name not in before:
        table.add_row(label, "-", Text(shown, "bold"), "")
        return
    change = after[name] - before[name]
    style = {1: "green", 0: "dim", -1: "red"}[((change > 0) - (change < 0)) * row.better]
    # The difference of two shares is in percentage points.
    moved = ("+" if change >= 0 else "-") + row.show(abs(change)).replace("%", " pp")
    table.add_row(label, row.show(before[name]), Text(shown, "bold"), Text(moved, style))


def _conversations(trainer: "Trainer", decode: Decode, first: int, last: int) -> Iterator[RenderableType]:
    if trainer.validation_data_dir is None or trainer.log_val_generations < 1:
        return
    files = [dump_file(trainer.validation_data_dir, step) for step in (first, last)]
    if not all(file.exists() for file in files):
        return
    before, after = ({record["key"].split("/", 1)[1]: record for record in load_trajectories(file)} for file in files)
    gains = {
        key: (after[key]["reward"] or 0.0) - (before[key]["reward"] or 0.0) for key in before.keys() & after.keys()
    }
    for key in sorted(gains, key=gains.__getitem__, reverse=True)[: trainer.log_val_generations]:
        yield conversation(before[key], decode, title=f"before (step {first})", max_prompt=PROMPT)
        yield conversation(after[key], decode, title=f"after (step {last})", max_prompt=PROMPT)
