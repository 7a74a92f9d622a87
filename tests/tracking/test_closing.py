"""The end of a run, and the memory it took."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from agentrl.tracking.live import LiveView
from agentrl.tracking.phases import memory_metrics
from agentrl.tracking.summary import before_after_table, closing, summary

STATUS = Path("/proc/self/status")
BEFORE = {"val/success": 0.31, "val/reward_mean": 0.2, "val/tools/model_error": 0.4, "val/turns_mean": 2.0}
AFTER = {"val/success": 0.81, "val/reward_mean": 0.75, "val/tools/model_error": 0.02, "val/turns_mean": 2.4}


def rows(table, *, styles=False):
    paper = Console(record=True, width=100, file=io.StringIO(), color_system="standard", force_terminal=True)
    paper.print(table)
    return [" ".join(line.split()) for line in paper.export_text(styles=styles).splitlines()]


def test_before_and_after():
    shown = rows(before_after_table(BEFORE, AFTER | {"val/truncated": 0.1}))
    assert "success 31.0% 81.0% +50.0 pp" in shown
    assert "reward 0.200 0.750 +0.550" in shown
    assert "call errors 40.0% 2.0% -38.0 pp" in shown
    assert "turns 2.00 2.40 +0.40" in shown
    assert "truncated - 10.0%" in shown


def test_colour_says_whether_a_change_is_good():
    def change(label, before, after):
        return next(row for row in rows(before_after_table(before, after), styles=True) if label in row)

    assert "\x1b[32m+50.0 pp" in change("success", BEFORE, AFTER)
    assert "\x1b[31m-50.0 pp" in change("success", AFTER, BEFORE)
    assert "\x1b[32m-38.0 pp" in change("call errors", BEFORE, AFTER)


def test_data_sources_get_rows_where_there_are_several():
    one = {"val/success": 0.5, "val/math/success": 0.5}
    two = one | {"val/code/success": 0.25}
    assert not any("success on" in row for row in rows(before_after_table(one, one)))
    assert "success on code 25.0% 25.0% +0.0 pp" in rows(before_after_table(two, two))


def test_summary_names_what_exists(tmp_path, monkeypatch):
    run = tmp_path / "runs" / "demo"
    for step in (5, 10, 100):
        (run / "checkpoints" / f"global_step_{step}").mkdir(parents=True)
    (run / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    shown = rows(summary(run, dumps={"validation dumps": run / "none", "rollout dumps": None}))
    assert shown == ["configuration runs/demo/config.yaml", "newest checkpoint runs/demo/checkpoints/global_step_100"]


@pytest.mark.skipif(not STATUS.exists(), reason="reads what Linux says of the process")
def test_peak_memory_is_what_the_system_says():
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    assert memory_metrics()["perf/peak_rss_gb"] == pytest.approx(int(line.split()[1]) / 2**20, rel=0.05)


def test_memory_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert set(memory_metrics()) == {"perf/peak_rss_gb"}


def test_the_commands_for_a_trained_model_can_be_copied(tmp_path, monkeypatch):
    run = tmp_path / "my runs" / "a name that is longer than a narrow terminal" / "demo"
    (run / "checkpoints" / "global_step_5").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    trainer = SimpleNamespace(default_local_dir=str(run), rollout_data_dir=None, validation_data_dir=None)
    (*_, commands) = closing(trainer, None)
    printed = io.StringIO()
    LiveView(console=Console(file=printed, width=40)).show(commands)
    place = f"'{run.relative_to(tmp_path)}'"
    assert printed.getvalue() == (
        f"try it: agentrl rollout model.path={place} ...\nexport it: agentrl merge {place} FOLDER\n"
    )
