"""Greedy rollouts: the engine's log-probs are then untempered, and so must be the trainer's."""

from pathlib import Path

import pytest

from agentrl.config import compose
from agentrl.tracking import read_metrics
from agentrl.train import train

pytestmark = pytest.mark.integration


def test_the_trainer_scores_as_a_greedy_engine_does(overrides: list[str], tmp_path: Path) -> None:
    settings = [
        *overrides[1:],
        "rollout.do_sample=false",
        "rollout.temperature=0.5",
        "rollout.n=1",
        "algorithm.adv_estimator=reinforce_plus_plus",
        "trainer.total_training_steps=1",
        "trainer.val_before_train=false",
        "data.val_files=null",
        f"trainer.default_local_dir={tmp_path}",
    ]
    train(compose(settings, config_name="tiny"))
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["rollout_gap/max"] < 1e-3
