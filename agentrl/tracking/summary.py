"""The summary at the end of a run: validation results before and after, and the run's files."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from agentrl.tracking.fields import count, figure, share
from agentrl.tracking.lines import sources
from agentrl.tracking.loggers import CONFIG_FILE, METRICS_FILE, TENSORBOARD_DIR

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Comparison:
    """A validation metric with a row in the table."""

    label: str
    name: str
    show: Callable[[float], str]
    better: int
    """1: higher is better, -1: lower, 0: neither."""


COMPARISONS = (
    Comparison("success", "success", share, 1),
    Comparison("pass@n", "pass_at_n", share, 1),
    Comparison("reward", "reward_mean", figure, 1),
    Comparison("turns", "turns_mean", count, 0),
    Comparison("tool calls", "tools/calls", count, 0),
    Comparison("call errors", "tools/model_error", share, -1),
    Comparison("response tokens", "response_tokens_mean", count, 0),
    Comparison("truncated", "truncated", share, -1),
)


def before_after_table(before: Mapping[str, float], after: Mapping[str, float]) -> Table:
    """Two results of `validation_metrics` side by side; per data source too if there are several."""
    table = Table(box=SIMPLE_HEAD, header_style="dim")
    table.add_column("held-out rows")
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right")
    for row in COMPARISONS:
        _add(table, row, f"val/{row.name}", row.label, before, after)
    by_source = sources(after)
    for source in by_source if len(by_source) > 1 else ():
        _add(table, COMPARISONS[0], f"val/{source}/success", f"success on {source}", before, after)
    return table


def summary(run_dir: Path, *, dumps: Mapping[str, Path | str | None] | None = None) -> Table:
    """Existing files of a run by kind. `dumps`: further folders by kind."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for what, path in _places(run_dir, dumps or {}):
        table.add_row(Text(what, "dim"), Text(_short(path), overflow="fold"))
    return table


def _add(
    table: Table, row: Comparison, name: str, label: str, before: Mapping[str, float], after: Mapping[str, float]
) -> None:
    if name not in after:
        return
    shown = row.show(after[name])
    if name not in before:
        table.add_row(label, "-", Text(shown, "bold"), "")
        return
    change = after[name] - before[name]
    style = {1: "green", 0: "dim", -1: "red"}[((change > 0) - (change < 0)) * row.better]
    # The difference of two shares is in percentage points.
    moved = ("+" if change >= 0 else "-") + row.show(abs(change)).replace("%", " pp")
    table.add_row(label, row.show(before[name]), Text(shown, "bold"), Text(moved, style))


def _places(run_dir: Path, dumps: Mapping[str, Path | str | None]) -> Iterator[tuple[str, Path]]:
    saved = sorted((run_dir / CHECKPOINTS).glob("global_step_*"), key=_step)
    places = {
        "configuration": run_dir / CONFIG_FILE,
        "metrics": run_dir / METRICS_FILE,
        "tensorboard": run_dir / TENSORBOARD_DIR,
        "newest checkpoint": saved[-1] if saved else None,
        **dumps,
    }
    for what, path in places.items():
        if path is not None and Path(path).exists():
            yield what, Path(path)


def _step(path: Path) -> int:
    digits = path.name.rpartition("_")[2]
    return int(digits) if digits.isdigit() else -1


def _short(path: Path) -> str:
    path = path.resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
