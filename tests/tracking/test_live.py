"""What the terminal shows, drawn by rich into a string."""

import io
import logging
import math
import sys

import pytest
from rich.console import Console

from agentrl.tracking.fields import FLAT, SUCCESS
from agentrl.tracking.live import LiveView
from agentrl.tracking.panel import panel, sparkline
from agentrl.tracking.state import State

STEP = {
    "rollout/reward_mean": 0.412,
    "rollout/reward_std": 0.3,
    "rollout/success": 0.405,
    "rollout/turns_mean": 2.4,
    "rollout/mask_share": 0.613,
    "rollout/infra_drops": 0.0,
    "tools/calls": 1.9,
    "tools/model_error": 0.034,
    "actor/kl_loss": 0.0012,
    "actor/entropy": 0.81,
    "actor/grad_norm": 0.42,
    "rollout_gap/mean": 0.0003,
    "perf/rollout_tokens_per_s": 26_400.0,
    "time/rollout": 18.0,
    "time/update": 8.0,
    "time/step": 27.1,
}
VALIDATION = {"val/success": 0.512, "val/reward_mean": 0.5, "val/gsm8k/success": 0.512}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def console(width=100, *, terminal=True):
    return Console(file=io.StringIO(), width=width, height=40, force_terminal=terminal, color_system=None, _environ={})


def screen(state, width=100, height=40, now=100.0):
    """The panel as lines of text."""
    paper = Console(record=True, width=width, height=height, file=io.StringIO(), color_system=None, _environ={})
    paper.print(panel(state, now, width, height))
    return paper.export_text().splitlines()


def state_after(steps, total=120):
    state = State(total, "demo", started=0.0)
    for step in range(1, steps + 1):
        state.record(step, STEP | {"rollout/success": step / 120}, now=27.1 * step)
    return state


def test_the_whole_view():
    state = state_after(30)
    state.record(0, VALIDATION, now=0.0)
    state.record(30, {**VALIDATION, "val/success": 0.75}, now=813.0)
    state.enter("rollout", now=813.0)
    state.done, state.expected = 21, 32
    text = "\n".join(screen(state, now=825.0))
    for shown in (
        "agentrl demo",
        "step 30/120",
        "25%",
        "rollout 12s",
        "21/32 trajectories",
        "0.412 ±0.30",
        "0.8% ",
        "25.0%",
        "turns         2.40",
        "tool calls    1.90",
        "call errors   3.4%",
        "mask share    61.3%",
        "KL            0.0012",
        "entropy       0.810",
        "log-prob gap  3.0e-04",
        "grad norm     0.420",
        "rollout tok/s 26.4k",
        "step time     27s",
        "■ rollout 18s  ■ update 8.0s  ■ other 1.1s",
        "success 51.2% → 75.0%",
        "13:45 elapsed · 40:27 to go",
    ):
        assert shown in text, f"{shown!r} is not in\n{text}"


def test_a_run_that_samples_ahead_shows_how_old_its_tokens_are():
    state = state_after(2)
    ages = {"staleness/share_10": 0.05, "staleness/share_0": 0.7, "staleness/share_2": 0.25}
    ahead = {"staleness/mean": 1.0, "staleness/max": 10.0, "staleness/mixed": 0.4, "staleness/gap_mean": 0.02}
    ahead |= {"perf/queue_groups": 3.0, "perf/interruptions": 12.0, "perf/engine_idle_share": 0.08}
    state.record(3, STEP | ages | ahead, now=90.0)
    text = "\n".join(lines := screen(state))
    shown = (
        "staleness     1.000",
        "oldest        10",
        "mixed         40.0%",
        "stale gap     0.0200",
        "queue         3",
    )
    for part in (
        *shown,
        "interrupted   12",
        "engine idle   8.0%",
        "token age     1.000",
        "■ 0 70.0%  ■ 2 25.0%  ■ 10 5.0%",
    ):
        assert part in text, f"{part!r} is not in\n{text}"
    assert {len(line) for line in lines} == {100}
    assert "token age" not in "\n".join(screen(state_after(2)))


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_it_fits_the_terminal(width):
    state = state_after(30)
    state.record(30, VALIDATION, now=813.0)
    state.enter("rollout", now=813.0)
    state.done, state.expected = 21, 32
    lines = screen(state, width, height=24)
    assert {len(line) for line in lines} == {width}
    assert lines[0].startswith("╭")
    assert lines[-1].startswith("╰")
    assert len(lines) <= 24


def test_a_low_terminal_gets_no_blank_lines():
    state = state_after(3)
    state.record(3, VALIDATION, now=80.0)
    roomy, low = screen(state, 80, height=24), screen(state, 80, height=20)
    blank = "│" + " " * 78 + "│"
    assert blank in roomy
    assert [line for line in roomy if line != blank] == low


def test_before_the_first_step_it_says_what_runs():
    state = State(120, "demo", started=0.0)
    assert "starting" in "\n".join(screen(state))
    state.enter("validate", now=98.0)
    text = "\n".join(screen(state, now=100.0))
    assert "validate 2.0s" in text
    assert "step 0/120" in text
    assert "to go" not in text


def test_figures_gone_wrong_are_shown_and_break_nothing():
    state = state_after(2)
    state.record(3, dict.fromkeys(STEP, math.nan) | {"rollout/success": math.inf, "time/step": 1.0}, now=90.0)
    assert "grad norm     nan" in "\n".join(screen(state))


@pytest.mark.parametrize(
    ("kind", "shown"), [(None, "finished"), (KeyboardInterrupt, "stopped"), (RuntimeError, "failed")]
)
def test_the_last_frame_says_how_it_ended(kind, shown):
    terminal = console()
    view = LiveView(2, "demo", console=terminal)
    view.__enter__()
    view.step(1, STEP)
    view.__exit__(kind, kind and kind(), None)
    assert shown in terminal.file.getvalue().rpartition("╭")[2]


def test_sparkline():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0, 1, 1], 2, low=0, high=1) == "▁█"
    assert sparkline([3.0, 3.0], 8) == "▁▁"
    assert sparkline([0.5, 2.0, -1.0], 8, low=0, high=1) == "▅█▁"
    assert sparkline([], 8) == ""
    assert len(sparkline(list(range(1000)), 37)) == 37


def test_eta_follows_the_last_steps():
    state = State(20, "demo", started=0.0)
    state.record(1, {"actor/lr": 0.1, "time/step": 100.0}, now=100.0)
    assert state.eta(100.0) == 1900.0
    for step in range(2, 14):
        state.record(step, {"actor/lr": 0.1, "time/step": 1.0}, now=100.0 + step)
    assert state.eta(113.0) == 7.0
    assert state.eta(113.5) == 6.5
    assert state.eta(1000.0) == 0.0


def test_eta_of_a_resumed_run_counts_its_own_steps_only():
    state = State(120, "demo", started=0.0)
    state.record(101, {"actor/lr": 0.1, "time/step": 10.0}, now=60.0)
    assert state.eta(60.0) == 190.0


def test_without_a_terminal_a_step_is_a_line_and_a_validation_is_a_line():
    clock, pipe = Clock(), console(terminal=False)
    with LiveView(120, "demo", console=pipe, clock=clock) as view:
        view.phase("rollout")
        view.progress(3, 32)
        view.step(0, VALIDATION | {"time/validate": 3.0, "time/step": 3.1, "perf/peak_rss_gb": 1.0})
        clock.now = 27.1
        view.step(1, STEP | VALIDATION)
        view.step(2, STEP | {"rollout/infra_drops": 2.0, "actor/skipped_steps": 1.0})
    assert not view._live
    lines = pipe.file.getvalue().splitlines()
    assert lines.pop(0) == f"success: {SUCCESS}"
    assert lines[0] == "validation at step 0  success 51.2%  reward 0.500"
    assert lines[1] == (
        "step   1/120  reward 0.412  success 40.5%  turns 2.40  calls 1.90  bad calls 3.4%  kl 0.0012  "
        "entropy 0.810  gap 3.0e-04  grad 0.420  tok/s 26.4k  27s  eta 53:44"
    )
    assert lines[2] == lines[0].replace("step 0", "step 1")
    assert "dropped 2  SKIPPED UPDATES 1" in lines[3]
    assert len(lines) == 4


def test_a_validation_says_what_it_is_not_of():
    """A figure of what is left of the rows is not the figure."""
    pipe = console(terminal=False)
    lost = {"val/success": 0.5, "val/trajectories": 64.0, "val/infra_drops": 9.0}
    LiveView(None, console=pipe).step(5, lost)
    assert pipe.file.getvalue().partition("\n")[2] == "validation at step 5  success 50.0%  dropped 9 of 64\n"


def test_lines_are_ascii_and_never_wrapped_or_marked_up():
    pipe = console(40, terminal=False)
    LiveView(None, console=pipe).step(3, STEP)
    LiveView(None, console=pipe).note("[bold]kept[/bold] " + "x" * 100)
    _, first, second = pipe.file.getvalue().splitlines()
    assert first.isascii()
    assert first.startswith("step 3  reward 0.412")
    assert second == "[bold]kept[/bold] " + "x" * 100


def test_several_data_sources_are_named():
    pipe = console(terminal=False)
    LiveView(None, console=pipe).step(5, {"val/success": 0.5, "val/a/success": 0.25, "val/b/c/success": 0.75})
    assert pipe.file.getvalue().partition("\n")[2] == "validation at step 5  success 50.0%  (a 25.0%, b/c 75.0%)\n"


@pytest.mark.parametrize("case", ["disabled", "dumb", "latin"])
def test_terminals_that_cannot_redraw_get_lines(case):
    terminal = console()
    if case == "dumb":
        terminal = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    if case == "latin":
        file = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
        terminal = Console(file=file, force_terminal=True, _environ={})
    assert not LiveView(5, console=terminal, enabled=case != "disabled")._live


def test_logs_and_prints_go_above_the_panel(monkeypatch):
    """Handlers that hold the real stderr, a library's own among them, must not write into the panel."""
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    handler = logging.StreamHandler()
    library = logging.getLogger("test_live.library")
    library.addHandler(handler)
    terminal = console()
    with LiveView(5, "demo", console=terminal) as view:
        assert view._live
        library.warning("a tool timed out")
        print("a print")
        view.note("a note")
    assert handler.stream is stderr
    library.removeHandler(handler)
    drawn = terminal.file.getvalue()
    assert all(f"{line}\n" in drawn for line in ("a tool timed out", "a print", "a note"))
    assert stderr.getvalue() == ""


def test_redirected_stderr_keeps_its_place(monkeypatch):
    log_file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log_file)
    handler = logging.StreamHandler()
    library = logging.getLogger("test_live.redirected")
    library.addHandler(handler)
    with LiveView(5, "demo", console=console()):
        library.warning("a tool timed out")
    library.removeHandler(handler)
    assert log_file.getvalue() == "a tool timed out\n"


def test_containers_are_counted_by_phase():
    state = state_after(1)
    counts = {"build": 3, "start": 0, "run": 40}
    state.containers = counts
    assert any("containers: 3 wait for an image, 40 run" in line for line in screen(state))
    counts.update(build=0, run=0)
    assert not any("containers" in line for line in screen(state))


def test_labels_that_do_not_explain_themselves_have_a_note():
    state = state_after(3)
    state.record(4, STEP | {"rollout/zero_variance_groups": 0.5}, now=100.0)
    tall, low = ("\n".join(screen(state, 140, height)) for height in (40, 30))
    assert f"success       {SUCCESS}" in tall
    assert f"flat groups   {FLAT}" in tall
    assert SUCCESS not in low


def test_a_single_turn_shows_neither_calls_nor_a_kl_that_it_does_not_have():
    pipe = console(terminal=False)
    view = LiveView(None, console=pipe, absent=("rollout/turns_mean", "tools/calls"))
    single = {"rollout/turns_mean": 1.0, "tools/calls": 0.0, "actor/ppo_kl": 0.0, "rollout/zero_variance_groups": 1.0}
    view.step(1, {"rollout/reward_mean": 0.0} | single)
    view.step(2, {"rollout/turns_mean": 1.5, "tools/calls": 2.0, "actor/ppo_kl": 0.01})
    assert pipe.file.getvalue().splitlines() == [
        "step 1  reward 0  NO GRADIENT: equal rewards in each group",
        "step 2  turns 1.50  calls 2.00  update kl 0.0100",
    ]
