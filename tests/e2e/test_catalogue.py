"""Parts of the catalogue together in a real run: greedy baselines, dynamic sampling, PF-PPO, another loss."""

from pathlib import Path

import pytest

from agentrl.tracking import read_metrics
from tests.e2e.conftest import agentrl

pytestmark = pytest.mark.integration


def test_a_run_with_everything_switched_on(tmp_path: Path, overrides: list[str]) -> None:
    agentrl(
        "train",
        *overrides,
        "algorithm.adv_estimator=remax",
        "algorithm.filter_groups.enable=true",
        "algorithm.filter_groups.max_num_gen_batches=2",
        "data.gen_batch_size=3",
        "data.train_batch_size=2",
        "actor.ppo_mini_batch_size=2",
        "rollout.n=2",
        "algorithm.use_pf_ppo=true",
        "algorithm.rollout_correction.rollout_rs=geometric",
        "actor.policy_loss.loss_mode=clip_cov",
        "trainer.total_training_steps=2",
        "trainer.val_before_train=false",
        f"trainer.default_local_dir={tmp_path}",
    )
    steps = read_metrics(tmp_path / "metrics.jsonl")
    assert len(steps) == 2
    for step in steps:
        assert 1 <= step["rollout/gen_batches"] <= 2
        assert step["rollout/trajectories"] == 6 * step["rollout/gen_batches"]
        assert "rollout/nothing_to_learn" in step or "actor/pg_loss" in step
