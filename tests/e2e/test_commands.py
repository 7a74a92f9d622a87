"""The commands from a person's side: what they leave behind, what they show, how they refuse."""

import json
from pathlib import Path

import pytest

from agentrl.tracking import load_trajectories, read_metrics
from tests.e2e.conftest import agentrl

pytestmark = pytest.mark.integration


@pytest.mark.timeout(600)
def test_train_leaves_a_run_that_can_be_read(tmp_path: Path, overrides: list[str]) -> None:
    done = agentrl("train", *overrides, "trainer.total_training_steps=2", f"trainer.default_local_dir={tmp_path}")
    steps = read_metrics(tmp_path / "metrics.jsonl")
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert "val/success" in steps[0]
    assert "val/success" in steps[2]
    for name in ("rollout/reward_mean", "rollout/mask_share", "actor/entropy", "rollout_gap/mean", "time/rollout"):
        assert name in steps[1], name
    # One process, one set of float32 weights: trainer and engine agree to float noise.
    assert steps[1]["rollout_gap/mean"] < 1e-4
    assert steps[1]["rollout/ledger_violations"] == 0
    assert (tmp_path / "config.yaml").exists()
    agentrl("merge", str(tmp_path), str(tmp_path / "merged"))
    assert (tmp_path / "merged/model.safetensors").exists()
    records = load_trajectories(tmp_path / "rollouts/1.jsonl")
    assert len(records) == 16
    assert "before" in done.stdout
    assert "metrics.jsonl" in done.stdout


@pytest.mark.timeout(300)
def test_rollout_shows_conversations_before_anyone_trains(tmp_path: Path, overrides: list[str]) -> None:
    out = tmp_path / "looked.jsonl"
    done = agentrl("rollout", *overrides, "--rows", "2", "--out", str(out), "rollout.n=1")
    assert done.stdout.count("tokens trained") == 2
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(records) == 2
    assert all(record["samples"][0]["columns"]["mask"] for record in records)


def test_a_mistake_gives_one_line_and_exit_code_2(tmp_path: Path, overrides: list[str]) -> None:
    """tests/cli/mistakes.py has the many, in one process."""
    done = agentrl("train", *overrides, f"trainer.default_local_dir={tmp_path / 'run'}", "rollout.n=1", check=False)
    complaint = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.returncode == 2, done.stderr
    assert len(complaint) == 1
    assert "rollout.n" in complaint[0]
    assert "Traceback" not in done.stderr
