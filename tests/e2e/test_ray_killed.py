"""SIGKILL of one rank within a step costs a restart; nothing outlives the controller, however it ends."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from agentrl_sandbox.isolation import descendants
from tests.e2e.conftest import agentrl, command, environment
from tests.e2e.test_ray import REWARD
from tests.e2e.test_resume import figures, lines

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TWO = ["trainer.device=cpu", "trainer.n_gpus_per_node=2", "ray_init.address=local"]


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def started(args: list[str], run_dir: Path) -> "subprocess.Popen[str]":
    """A run of two ranks that is past its first step."""
    process = subprocess.Popen(
        command("train", *args), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 300
    while lines(run_dir) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None
    return process


def gone(pids: list[int]) -> bool:
    """Ray's agents take a minute: so long they try to tell the cluster's head, gone itself, that their node is."""
    deadline = time.monotonic() + 120
    while any(title(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not any(title(pid) for pid in pids)


def test_a_killed_rank(tmp_path: Path, overrides: list[str]) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    (tmp_path / "reward.py").write_text(REWARD)
    reward = "reward.custom_reward_function"
    overrides = [*overrides, f"{reward}.path={tmp_path / 'reward.py'}", f"{reward}.name=compute_score"]
    agentrl("train", *overrides, f"trainer.default_local_dir={whole}")
    process = started([*overrides, *TWO, f"trainer.default_local_dir={broken}"], broken)
    ranks = [pid for pid in descendants(process.pid) if title(pid).startswith("ray::Rank")]
    assert len(ranks) == 2
    os.kill(ranks[0], signal.SIGKILL)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "the run resumes by itself (restart 1 of 3)" in said
    expected, mine = figures(whole), figures(broken)
    assert len(mine) == len(expected)
    assert expected[-1]["actor/grad_norm"] > 0.01
    for step, other in zip(mine, expected, strict=True):
        assert step == pytest.approx(other, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_controller(number: signal.Signals, tmp_path: Path, overrides: list[str]) -> None:
    process = started([*overrides, *TWO, f"trainer.default_local_dir={tmp_path}"], tmp_path)
    below = descendants(process.pid)
    assert len(below) > 3
    process.send_signal(number)
    process.communicate(timeout=600)
    assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    assert gone(below)
