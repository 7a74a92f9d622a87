"""Conversations are compared with the template while the policy trains, and what is found is written and counted."""

import threading
from pathlib import Path

import pytest

from agentrl.config import compose
from agentrl.rollout import rollouts
from agentrl.tracking import load_trajectories, read_metrics
from agentrl.train import train
from agentrl.training import PolicyActor
from agentrl.trajectory.trajectory import Trajectory

pytestmark = pytest.mark.integration

updating = threading.Event()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that finds something, and ends only when the update has begun."""
    update = PolicyActor.update

    def compare(chat: object, trajectory: Trajectory) -> None:
        if not updating.wait(60):
            raise TimeoutError("the update waits for the comparison")
        trajectory.extra["template_mismatch"] = f"in {trajectory.key}"

    def telling(self, batch):
        updating.set()
        return update(self, batch)

    monkeypatch.setattr(rollouts, "record_mismatches", compare)
    monkeypatch.setattr(PolicyActor, "update", telling)
    updating.clear()


def test_a_comparison_delays_no_update(tmp_path: Path, overrides: list[str], patient: None) -> None:
    words = [
        *overrides[1:],
        "data.train_batch_size=2",
        "rollout.n=2",
        "actor.ppo_mini_batch_size=2",
        "trainer.total_training_steps=1",
        "trainer.val_before_train=false",
        "data.val_files=null",
        f"trainer.default_local_dir={tmp_path}",
    ]
    train(compose(words, config_name="tiny"))
    assert read_metrics(tmp_path / "metrics.jsonl")[0]["rollout/template_mismatches"] == 4
    records = load_trajectories(tmp_path / "rollouts/1.jsonl")
    assert [record["extra"]["template_mismatch"] for record in records] == [f"in {r['key']}" for r in records]
