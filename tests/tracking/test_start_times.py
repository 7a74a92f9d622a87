"""The seconds of a start are split by cause, and logged once."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema import Config, Trainer
from agentrl.tracking import read_metrics, start_times
from agentrl.tracking.metrics import is_wall_clock
from agentrl.tracking.run_tracker import RunTracker
from agentrl.tracking.start_times import StartTimes, process_age, start_line


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(start_times.time, "monotonic", lambda: now[0])
    return now


def test_a_cause_does_not_count_what_is_inside_it(clock: list[float]) -> None:
    times = StartTimes(age=2.0)
    clock[0] += 4.0
    times.imported()
    launched = clock[0]

    async def probe(seconds: float) -> str:
        clock[0] += seconds
        return "done"

    for _ in range(2):
        with times.phase("weights"):
            clock[0] += 1.0
            assert asyncio.run(times.timed("probe", probe)(3.0)) == "done"
    times.served(launched)
    split = {"start/imports": 6.0, "start/weights": 2.0, "start/probe": 6.0, "start/server": 8.0, "start/total": 14.0}
    assert times.metrics() == split
    assert start_line(split) == "Start: 14.0 s: imports 6.0, weights 2.0, probe 6.0; server 8.0 beside them"
    assert all(is_wall_clock(name) for name in split)


def test_the_first_step_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = Config(trainer=Trainer(default_local_dir=str(tmp_path), logger=["file"], live=False))
    with RunTracker(config, 2, 0, str) as tracker:
        tracker.record_start({"start/total": 1.5, "start/model": 1.0})
        for step in range(3):  # 0: the validation before the first step
            tracker.step(step, {"a": 1.0})
    assert "Start: 1.5 s: model 1.0" in capsys.readouterr().out
    logged = [{n for n in line if n.startswith("start/")} for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert logged == [set(), {"start/total", "start/model"}, set()]


def test_a_process_knows_its_age() -> None:
    assert 0 <= process_age() < time.monotonic() + 1


def test_the_clock_of_a_restart_begins_with_it(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    """Seconds that the run took before its worker died are none of the new start."""
    from argparse import Namespace

    from agentrl.cli import train as command
    from agentrl.doctor import preflight
    from agentrl.training.checkpoint import run_start

    seen = []

    def supervise(run: Any, config: Config, *_: object) -> None:
        run(config)
        clock[0] += 500.0
        run(config)

    monkeypatch.setattr(start_times, "process_age", lambda: 7.0)
    monkeypatch.setattr(command, "load_config", lambda args: Config())
    monkeypatch.setattr(preflight, "preflight_training", lambda config: [])
    monkeypatch.setattr(run_start, "supervise", supervise)
    monkeypatch.setattr(command, "train", lambda config, times: seen.append((times or StartTimes()).metrics()))
    command.run(Namespace(multirun=False))
    assert [metrics["start/total"] for metrics in seen] == [7.0, 0.0]
