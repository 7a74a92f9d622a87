"""A run that is killed at any moment and started again leaves the same metrics, bit for bit, as an unbroken one."""

import random
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import agentrl, environment, figures
from tests.warm import start_agentrl

pytestmark = pytest.mark.integration

STEPS = 6


def lines(run_dir: Path) -> int:
    file = run_dir / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def run_until(run_dir: Path, args: list[str], wanted: int, delay: float) -> bool:
    """Start or go on, SIGKILL `delay` seconds after `wanted` lines of metrics; False when it ended before."""
    process = start_agentrl(*args, env=environment(), start_new_session=True)
    deadline = time.monotonic() + 240
    while lines(run_dir) < wanted and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(delay)
    if process.poll() is not None:
        return False
    process.send_signal(signal.SIGKILL)
    process.wait()
    return True


@pytest.mark.timeout(600)
def test_killed_runs_repeat_an_unbroken_one_bit_for_bit(tmp_path: Path, overrides: list[str]) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    agentrl("train", *overrides, f"trainer.default_local_dir={whole}")
    args = ["train", *overrides, f"trainer.default_local_dir={broken}"]
    rng = random.Random(0)
    # Line 1 is the validation before training; steps 1-3 are the first epoch, 4-6 the second.
    kills = [run_until(broken, args, wanted, rng.uniform(0, 0.3)) for wanted in (2, 4, 6)]
    assert sum(kills) >= 2, "the run was too fast to be killed"
    agentrl(*args)
    expected = figures(whole)
    assert [step["step"] for step in expected] == list(range(STEPS + 1))
    assert figures(broken) == expected
    # The rows of a step are in its dump: the epoch boundary repeated or skipped nothing.
    dumps = [sorted(run.glob("rollouts/*.jsonl")) for run in (whole, broken)]
    assert [file.name for file in dumps[0]] == [file.name for file in dumps[1]]


@pytest.mark.timeout(600)
def test_a_finished_run_started_again_changes_nothing(tmp_path: Path, overrides: list[str]) -> None:
    args = ["train", *overrides, "trainer.total_training_steps=1", f"trainer.default_local_dir={tmp_path}"]
    agentrl(*args)
    before = figures(tmp_path)
    agentrl(*args)
    assert figures(tmp_path) == before
    agentrl(*args, "trainer.resume_mode=disable")
    assert figures(tmp_path) == before  # from the start again: same seeds, same run
