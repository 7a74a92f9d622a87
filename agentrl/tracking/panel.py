"""Draws the state of a run as one panel; a pure function of state, time and width."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, pairwise

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl.tracking.fields import FIELDS, Field, duration, figure, share
from agentrl.tracking.lines import sources
from agentrl.tracking.state import State

MAX_WIDTH = 110
CELL_WIDTH = 26
LABEL_WIDTH = 13
BLOCKS = "▁▂▃▄▅▆▇█"
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPINS_PER_SECOND = 4
PHASE_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
OTHER_SHARE = 0.02
"""Time outside all phases that is worth showing, as a share of the step."""
GAP = Text("")


def panel(state: State, now: float, width: int) -> Panel:
    """The whole view, `width` columns wide (at most MAX_WIDTH)."""
    width = min(width, MAX_WIDTH)
    inner = width - 4
    blocks: list[RenderableType] = [_progress(state, inner), _activity(state, now, inner)]
    if state.metrics:
        blocks += [GAP, _trends(state, inner), GAP, _figures(state, inner), GAP, *_phase_times(state, inner)]
    if state.validations:
        blocks += [GAP, _validation(state)]
    title = Text.assemble((" agentrl ", "bold"), (f"{state.title} ", "cyan"))
    return Panel(
        Group(*blocks), title=title, title_align="left", subtitle=_clock(state, now), subtitle_align="right",
        width=width, border_style=_border(state),
    )  # fmt: skip


def sparkline(values: Sequence[float], width: int, *, low: float | None = None, high: float | None = None) -> str:
    """The values as a row of at most `width` blocks; neighbours are averaged where there are more values."""
    if not values or width < 1:
        return ""
    points = _resample(values, width)
    low = min(points) if low is None else low
    high = max(points) if high is None else high
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round(min(max((p - low) * scale, 0), len(BLOCKS) - 1))] for p in points)


def _resample(values: Sequence[float], width: int) -> list[float]:
    n = len(values)
    if n <= width:
        return list(values)
    cuts = [i * n // width for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]


def _border(state: State) -> str:
    if state.ended == "stopped":
        return "red"
    return "green" if state.ended else "bright_black"


def _clock(state: State, now: float) -> Text:
    text = Text(f" {duration(now - state.started)} elapsed")
    eta = state.eta(now)
    if eta is not None:
        text.append(f" · {duration(eta)} to go", style="bold")
    return text.append(" ")


def _progress(state: State, width: int) -> RenderableType:
    total = state.total_steps
    label = f"step {state.step}/{total}" if total is not None else f"step {state.step}"
    grid = Table.grid(padding=(0, 1))
    bar = ProgressBar(total or 1, state.step if total else 0, width=max(10, width - len(label) - 6))
    grid.add_row(Text(label, style="bold"), bar, Text(f"{state.step / total:4.0%}" if total else ""))
    return grid


def _activity(state: State, now: float, width: int) -> Text:
    """The phase that runs, for how long, and how far it is."""
    if state.ended:
        return Text(state.ended, style=f"bold {_border(state)}")
    if state.phase is None:
        return Text("starting", style="dim")
    spent = now - state.phase_started
    spinner = SPINNER[int(spent * SPINS_PER_SECOND) % len(SPINNER)]
    text = Text.assemble((f"{spinner} {state.phase}", "bold cyan"), f" {duration(spent)}")
    if not state.expected:
        return text
    tally = f" {state.done}/{state.expected} trajectories"
    room = max(0, min(40, width - text.cell_len - len(tally) - 2))
    filled = room * min(state.done, state.expected) // state.expected
    return text.append("  ").append("━" * filled, "cyan").append("━" * (room - filled), "bright_black").append(tally)


def _trends(state: State, width: int) -> Table:
    """Reward and success: first value, the way, value now."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    room = max(10, width - LABEL_WIDTH - 25)
    if state.rewards:
        line = Text(sparkline(state.rewards, room), "green")
        now = Text(figure(state.rewards[-1]), "bold")
        if "rollout/reward_std" in state.metrics:
            now.append(f" ±{state.metrics['rollout/reward_std']:.2f}", "dim not bold")
        grid.add_row(_label("reward"), Text(figure(state.rewards[0]), "dim"), line, now)
    if state.successes:
        line = Text(sparkline(state.successes, room, low=0.0, high=1.0), "cyan")
        now = Text(share(state.successes[-1]), "bold")
        grid.add_row(_label("success"), Text(share(state.successes[0]), "dim"), line, now)
    return grid


def _label(text: str) -> Text:
    return Text(f"{text:<{LABEL_WIDTH - 1}}", "dim")


def _figures(state: State, width: int) -> Table:
    """As many columns of label and value as fit."""
    columns = max(1, width // CELL_WIDTH)
    cells = [_cell(field, state.metrics) for field in FIELDS if field.value(state.metrics) is not None]
    grid = Table.grid()
    for _ in range(columns):
        grid.add_column(width=width // columns)
    for start in range(0, len(cells), columns):
        grid.add_row(*cells[start : start + columns])
    return grid


def _cell(field: Field, metrics: Mapping[str, float]) -> Text:
    value = field.value(metrics)
    loud = value is not None and field.alarm(value)
    label = Text(f"{field.label:<{LABEL_WIDTH}} ", style="dim")
    return label.append(field.text(metrics), style="not dim bold red" if loud else "not dim")


def _phase_times(state: State, width: int) -> Iterator[Text]:
    """One bar, split as the last step's time was, and what each colour means."""
    seconds = _phases(state.metrics)
    total = sum(seconds.values())
    if not total:
        return
    label = Text(f"{'step time':<{LABEL_WIDTH}} ", style="dim")
    label.append(duration(state.metrics.get("time/step", total)), style="not dim bold")
    yield label
    room = width
    bar, legend = Text(), Text()
    for (name, spent), colour in zip(seconds.items(), cycle(PHASE_COLOURS), strict=False):
        bar.append("█" * round(room * spent / total), colour)
        legend.append("■ ", colour).append(f"{name} {duration(spent)} ").append(f"{spent / total:.0%}   ", "dim")
    bar.truncate(room)
    yield bar
    yield legend


def _phases(metrics: Mapping[str, float]) -> dict[str, float]:
    """Seconds by phase, in the order they ran, with what no phase accounts for as "other"."""
    seconds = {name.removeprefix("time/"): value for name, value in metrics.items() if name.startswith("time/")}
    step = seconds.pop("step", 0.0)
    rest = step - sum(seconds.values())
    return seconds | {"other": rest} if rest > OTHER_SHARE * step else seconds


def _validation(state: State) -> RenderableType:
    """Success on held-out rows: first and latest."""
    (first_step, first), (last_step, last) = state.validations[0], state.validations[-1]
    text = Text(f"{'validation':<{LABEL_WIDTH}} ", style="dim")
    for label, name, show in (("success", "val/success", share), ("reward", "val/reward_mean", figure)):
        if name not in last:
            continue
        text.append(f"{label} ", "not dim")
        if last_step != first_step and name in first:
            text.append(f"{show(first[name])} → ", "dim")
        text.append(f"{show(last[name])}   ", "not dim bold")
    by_source = sources(last)
    if len(by_source) > 1:
        text.append("  ".join(f"{name} {share(value)}" for name, value in by_source.items()), "not dim")
    return text.append(f"  step {last_step}", "dim")
