"""Draws the state of a run as one panel; a pure function of state, time and width."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, cycle, pairwise

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agentrl.tracking.fields import FIELDS, Field, duration, figure, share
from agentrl.tracking.lines import SCORES, sources
from agentrl.tracking.state import State

CELL_WIDTH = 24
LABEL_WIDTH = 13
ROOMY_HEIGHT = 24
NOTES_HEIGHT = 32
"""Lines of a terminal with room for notes."""
BLOCKS = "▁▂▃▄▅▆▇█"
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPINS_PER_SECOND = 4
PHASE_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
SMALL_SHARE = 0.02
"""Shares of a step below this are not worth a name."""
GAP = Text("")
AGE = "staleness/share_"
DOING = {
    "build": "wait for an image",
    "start": "start",
    "set_up": "are set up",
    "run": "run",
    "verify": "are verified",
}


def panel(state: State, now: float, width: int, height: int = ROOMY_HEIGHT) -> Panel:
    """The whole view, `width` columns wide; without blank lines and notes where `height` is small."""
    inner = width - 4
    blocks: list[RenderableType] = [_progress(state, inner), _activity(state, now, inner)]
    blocks += _containers(state)
    if state.metrics:
        blocks += [GAP, _trends(state, inner), GAP, _figures(state, inner), GAP, *_phase_times(state, inner)]
        blocks += _token_ages(state, inner)
    if state.validations:
        blocks += [GAP, _validation(state)]
    if state.metrics and height >= NOTES_HEIGHT:
        blocks += [GAP, *_notes(state)]
    if height < ROOMY_HEIGHT:
        blocks = [block for block in blocks if block is not GAP]
    title = Text.assemble((" agentrl ", "bold"), (f"{state.title} ", "cyan"))
    return Panel(
        Group(*blocks),
        title=title,
        title_align="left",
        subtitle=_clock(state, now),
        subtitle_align="right",
        width=width,
        border_style=_border(state),
    )


def sparkline(values: Sequence[float], width: int, *, low: float | None = None, high: float | None = None) -> str:
    """The values as a row of at most `width` blocks; neighbours are averaged where there are more values."""
    if not values or width < 1:
        return ""
    n = len(values)
    cuts = [i * n // min(width, n) for i in range(min(width, n) + 1)]
    points = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low = min(points) if low is None else low
    high = max(points) if high is None else high
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round(min(max((p - low) * scale, 0), len(BLOCKS) - 1))] for p in points)


def _border(state: State) -> str:
    if state.ended in ("stopped", "failed"):
        return "red"
    return "green" if state.ended else "bright_black"


def _clock(state: State, now: float) -> Text:
    text = Text(f" {duration(now - state.started)} elapsed")
    eta = state.eta(now)
    if eta is not None:
        text.append(f" · {duration(eta)} to go", style="bold")
    return text.append(" ")


def _progress(state: State, width: int) -> Text:
    total = state.total_steps
    if not total:
        return Text(f"step {state.step}", "bold")
    text = Text(f"step {state.step}/{total} ", "bold")
    return text.append_text(_bar(state.step, total, width - text.cell_len - 5)).append(f" {state.step / total:4.0%}")


def _bar(done: int, total: int, width: int) -> Text:
    """Two kinds of line as well as two colours: it also reads without colours."""
    width = max(0, width)
    filled = width * min(done, total) // total
    return Text("━" * filled, "not bold cyan").append("─" * (width - filled), "not bold bright_black")


def _activity(state: State, now: float, width: int) -> Text:
    """The phase that runs, for how long, and how far it is."""
    if state.ended:
        return Text(state.ended, style=f"bold {_border(state)}")
    if state.phase is None:
        return Text("starting", style="dim")
    spent = now - state.phase_started
    spinner = SPINNER[int(spent * SPINS_PER_SECOND) % len(SPINNER)]
    text = Text.assemble((f"{spinner} {state.phase}", "bold cyan"), f" {duration(spent):<5}")
    if not state.expected:
        return text
    tally = f" {state.done}/{state.expected} trajectories"
    bar = _bar(state.done, state.expected, min(40, width - text.cell_len - len(tally) - 1))
    return text.append(" ").append_text(bar).append(tally)


def _containers(state: State) -> list[Text]:
    """How many trajectories with a container are in which phase."""
    counts = [f"{state.containers[phase]} {word}" for phase, word in DOING.items() if state.containers.get(phase)]
    return [Text(f"containers: {', '.join(counts)}", style="dim")] if counts and not state.ended else []


def _trends(state: State, width: int) -> Table:
    """Reward and success: first value, the way here and the steps to come, value now."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    room = max(10, width - LABEL_WIDTH - 25)
    spread = state.metrics.get("rollout/reward_std")
    rows = (("reward", state.rewards, figure, None, None), ("success", state.successes, share, 0.0, 1.0))
    for label, values, show, low, high in rows:
        if values:
            now = Text(show(values[-1]), "bold")
            if label == "reward" and spread is not None:
                now.append(f" ±{spread:.2f}", "dim not bold")
            way = _way(state, values, room, low, high)
            grid.add_row(Text(label.ljust(LABEL_WIDTH), "dim"), Text(show(values[0]), "dim"), way, now)
    return grid


def _way(state: State, values: Sequence[float], room: int, low: float | None = None, high: float | None = None) -> Text:
    """A sparkline as long as the share of the run that it covers, then dots up to the end of the run."""
    expected = len(values) + max(0, (state.total_steps or state.step) - state.step)
    whole = min(room, expected)
    width = max(1, whole * len(values) // expected)
    return Text(sparkline(values, width, low=low, high=high), "cyan").append("·" * (whole - width), "dim")


def _label(text: str) -> Text:
    return Text(f"{text:<{LABEL_WIDTH}} ", "dim")


def _figures(state: State, width: int) -> Columns:
    """A grid of labels and values, with as many columns as fit."""
    columns = max(1, width // CELL_WIDTH)
    values = [(field, field.value(state.metrics)) for field in FIELDS]
    cells = [_cell(field, value) for field, value in values if value is not None]
    return Columns(cells, width=width // columns, padding=0)


def _cell(field: Field, value: float) -> Text:
    style = "not dim bold red" if field.alarm(value) else "not dim"
    return _label(field.label).append(field.show(value), style)


def _notes(state: State) -> list[Text]:
    """A line for each figure whose label does not explain itself."""
    shown = [field for field in (*SCORES, *FIELDS) if field.note and field.value(state.metrics) is not None]
    return [_label(field.label).append(field.note) for field in shown]


def _phase_times(state: State, width: int) -> list[Text]:
    """The last step's time by phase."""
    seconds = _phases(state.metrics)
    whole = duration(state.metrics.get("time/step", sum(seconds.values())))
    return _split_bar("step time", whole, seconds, duration, width)


def _token_ages(state: State, width: int) -> list[Text]:
    """The last step's tokens by the updates since they were drawn."""
    ages = {name.removeprefix(AGE): value for name, value in state.metrics.items() if name.startswith(AGE)}
    mean = state.metrics.get("staleness/mean", 0.0)
    return _split_bar("token age", figure(mean), dict(sorted(ages.items(), key=lambda age: int(age[0]))), share, width)


def _split_bar(
    label: str, head: str, parts: Mapping[str, float], show: Callable[[float], str], width: int
) -> list[Text]:
    """A bar split in proportion to the parts, and a legend of its colours; nothing if the parts are 0."""
    total = sum(parts.values())
    if not total:
        return []
    bar = _label(label).append(f"{head:<7}", "not dim bold")
    room = width - bar.cell_len
    legend = Text(" " * (LABEL_WIDTH + 1), no_wrap=True, overflow="ellipsis")
    cuts = [round(room * spent / total) for spent in accumulate(parts.values(), initial=0.0)]
    for (name, part), colour, (a, b) in zip(parts.items(), cycle(PHASE_COLOURS), pairwise(cuts), strict=False):
        bar.append("█" * (b - a), f"not dim {colour}")
        if part >= SMALL_SHARE * total:
            legend.append("■ ", colour).append(f"{name} ").append(f"{show(part)}  ", "dim")
    return [bar, legend]


def _phases(metrics: Mapping[str, float]) -> dict[str, float]:
    """Seconds by phase, in the order they ran, with what no phase accounts for as "other"."""
    times = {name.removeprefix("time/"): value for name, value in metrics.items() if name.startswith("time/")}
    seconds = {name: value for name, value in times.items() if math.isfinite(value)}
    step = seconds.pop("step", 0.0)
    rest = step - sum(seconds.values())
    return seconds | {"other": rest} if rest > SMALL_SHARE * step else seconds


def _validation(state: State) -> RenderableType:
    """Success on held-out rows: first and latest."""
    (first_step, first), (last_step, last) = state.validations[0], state.validations[-1]
    text = _label("validation")
    for label, name, show in (("success", "val/success", share), ("reward", "val/reward_mean", figure)):
        if name not in last:
            continue
        text.append(f"{label} ", "not dim")
        if last_step != first_step and name in first:
            text.append(f"{show(first[name])} → ", "dim")
        text.append(f"{show(last[name])}   ", "not dim bold")
    by_source = sources(last)
    if len(by_source) > 1:
        text.append("  ".join(f"{name} {share(value)}" for name, value in by_source.items()), "not dim").append(" ")
    return text.append(f"(step {last_step})", "dim")
