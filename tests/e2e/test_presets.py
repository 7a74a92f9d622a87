"""Every preset of configs/algorithm makes a step on the tiny model."""

from pathlib import Path

import pytest

from agentrl.config import compose
from agentrl.core.resources import find
from agentrl.tracking import read_metrics
from agentrl.train import train

pytestmark = pytest.mark.integration

PRESETS = sorted(file.stem for file in find("configs/algorithm", what="presets").glob("*.yaml"))
SHORT = ["algorithm.filter_groups.max_num_gen_batches=1"]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_step(preset: str, tmp_path: Path, overrides: list[str]) -> None:
    config = compose(
        [
            *overrides[1:],
            f"algorithm={preset}",
            *SHORT,
            "data.val_files=null",
            "trainer.val_before_train=false",
            "reward.custom_reward_function.name=tests.e2e.test_scoring_beside:quick",
            "data.train_batch_size=4",
            "actor.ppo_mini_batch_size=2",
            "trainer.total_training_steps=1",
            f"trainer.default_local_dir={tmp_path}",
        ],
        config_name="tiny",
    )
    train(config)
    (step,) = read_metrics(tmp_path / "metrics.jsonl")
    assert step["actor/grad_norm"] > 0
