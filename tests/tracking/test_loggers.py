"""Records of a run that outlive interruptions."""

import builtins
import json
import math
import signal
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agentrl.core.errors import UserError
from agentrl.tracking import read_metrics
from agentrl.tracking.fields import SUCCESS
from agentrl.tracking.live import LiveView
from agentrl.tracking.loggers import ADDS, FileLogger, TensorBoardLogger, open_loggers
from agentrl.tracking.services.service import RunInfo

pytestmark = pytest.mark.integration


def figures(step):
    return {"rollout/reward_mean": 0.1 + step / 3, "actor/entropy": 1 / (step + 1)}


def log_steps(path, steps, resume_step=None):
    logger = FileLogger(path, resume_step=resume_step)
    for step in steps:
        logger.log(step, figures(step))
    logger.close()
    return path.read_bytes()


def test_one_object_a_line(tmp_path):
    log_steps(tmp_path / "metrics.jsonl", [1, 2])
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": 1} | figures(1), {"step": 2} | figures(2)]
    assert read_metrics(tmp_path / "metrics.jsonl")[1] == {"step": 2} | figures(2)


def test_values_that_json_does_not_have_become_null(tmp_path):
    logger = FileLogger(tmp_path / "m.jsonl")
    logger.log(1, {"loss": math.nan, "norm": math.inf})
    assert (tmp_path / "m.jsonl").read_text() == '{"step": 1, "loss": null, "norm": null}\n'
    assert math.isnan(read_metrics(tmp_path / "m.jsonl")[0]["loss"])


@pytest.mark.parametrize("torn", ["", '{"step": 6, "rollout/rew', '{"step": 6}'])
def test_a_resumed_file_equals_an_unbroken_one(tmp_path, torn):
    unbroken = log_steps(tmp_path / "unbroken.jsonl", range(8))
    path = tmp_path / "metrics.jsonl"
    log_steps(path, range(6))
    with path.open("a") as file:
        file.write(torn)
    assert log_steps(path, range(4, 8), resume_step=3) == unbroken
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_run_that_only_adds_drops_nothing(tmp_path):
    """A validation of an old checkpoint: the steps after it are somebody's record."""
    log_steps(tmp_path / "metrics.jsonl", range(4))
    log_steps(tmp_path / "metrics.jsonl", [2], resume_step=ADDS)
    assert [metrics["step"] for metrics in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3, 2]
    for steps, resume_step in ((range(4), None), ([2], ADDS)):
        logger = TensorBoardLogger(RunInfo("p", "e", tmp_path, "x: 1", resume_step))
        for step in steps:
            logger.log(step, {"a": 1.0})
        logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert {event.step for event in events.Scalars("a")} == {0, 1, 2, 3}


def test_a_killed_process_loses_no_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    code = (
        "import os, signal, pathlib\n"
        "from agentrl.tracking.loggers import FileLogger\n"
        f"logger = FileLogger(pathlib.Path({str(path)!r}))\n"
        "for step in range(5): logger.log(step, {'x': step})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert [record["step"] for record in read_metrics(path)] == [0, 1, 2, 3, 4]


FULL = """
import resource, sys
from agentrl.tracking.loggers import open_loggers
from agentrl.tracking.services.service import RunInfo
from pathlib import Path

folder = Path(sys.argv[1])
loggers = open_loggers(["file"], RunInfo("p", "e", folder))
loggers.log(1, {"x": 1})
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, ((folder / "metrics.jsonl").stat().st_size + 9, hard))
for step in (2, 3):
    loggers.log(step, {"x": step})
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
if sys.argv[2] == "log":
    loggers.log(4, {"x": 4})
    assert (folder / "metrics.jsonl").read_text().count("step") == 4
loggers.close()
"""


@pytest.mark.parametrize("then", ["log", "close"])
def test_lines_that_a_full_disk_refused_come_back(tmp_path, then):
    ended = subprocess.run([sys.executable, "-c", FULL, tmp_path, then], stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("the run continues without it") == 1
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [(record["step"], record["x"]) for record in records] == [
        (k, k) for k in range(1, 5 if then == "log" else 4)
    ]


@pytest.mark.parametrize("new_run", [None, 0])
def test_a_new_run_begins_anew_and_keeps_the_old_file(tmp_path, new_run):
    path = tmp_path / "metrics.jsonl"
    old = log_steps(path, range(3))
    log_steps(path, [0], resume_step=new_run)
    assert [record["step"] for record in read_metrics(path)] == [0]
    assert (tmp_path / "metrics.jsonl.old").read_bytes() == old


def test_a_broken_line_in_the_middle_is_the_persons_to_mend(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl, line 2, "):
        FileLogger(path, resume_step=2)


def test_resuming_without_a_file_starts_one(tmp_path):
    assert log_steps(tmp_path / "new" / "m.jsonl", [5], resume_step=4).startswith(b'{"step": 5,')


def scalars(folder, name):
    events = EventAccumulator(str(folder))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(name)}


def test_tensorboard_forgets_what_a_restart_takes_back(tmp_path):
    for steps, resume_step, value in (((1, 2, 3), None, 0.25), ((3, 4), 2, 0.75)):
        logger = TensorBoardLogger(RunInfo("p", "e", tmp_path, "a: 1", resume_step))
        for step in steps:
            logger.log(step, {"rollout/success": value})
        logger.close()
    assert scalars(tmp_path / "tensorboard", "rollout/success") == {1: 0.25, 2: 0.25, 3: 0.75, 4: 0.75}


def test_missing_tensorboard_names_the_command(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith(("tensorboard", "torch.utils.tensorboard")):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r'pip install "agentrl\[loggers\]"'):
        TensorBoardLogger(RunInfo("p", "e", tmp_path))


def test_open_loggers(tmp_path, capsys):
    loggers = open_loggers(["console", "file", "tensorboard"], RunInfo("p", "e", tmp_path, "trainer:\n  seed: 1\n"))
    loggers.log(1, {"rollout/success": 0.5})
    loggers.close()
    assert (tmp_path / "config.yaml").read_text() == "trainer:\n  seed: 1\n"
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "rollout/success": 0.5}]
    assert scalars(tmp_path / "tensorboard", "rollout/success") == {1: 0.5}
    assert capsys.readouterr().out == f"success: {SUCCESS}\nstep 1  success 50.0%\n"


def test_without_console_nothing_is_printed(tmp_path, capsys):
    view = LiveView(10, enabled=False)
    loggers = open_loggers(["file"], RunInfo("p", "e", tmp_path, view=view))
    loggers.log(1, {"rollout/success": 0.5})
    loggers.close()
    assert capsys.readouterr().out == ""


def test_an_unknown_logger(tmp_path):
    with pytest.raises(UserError, match="trainer.logger=comet: choose console, file, tensorboard, mlflow"):
        open_loggers(["file", "comet"], RunInfo("p", "e", tmp_path))
    assert list(tmp_path.iterdir()) == []
