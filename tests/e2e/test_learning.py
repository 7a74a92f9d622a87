"""The point of it all: held-out success rises. The whole `make tiny` recipe, one seed, some minutes."""

from pathlib import Path
from statistics import mean

import pytest

from agentrl.tracking import read_metrics
from benchmarks.demo_seeds import Extra, run_seed

CRITIC = [
    "algorithm.adv_estimator=gae",
    "critic.optim.lr=1e-3",
    "critic.ppo_mini_batch_size=4",
    "critic.ppo_epochs=2",
    "trainer.critic_warmup=2",
]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_learns_with_a_critic_too(tmp_path: Path):
    result = run_seed("tiny", 0, tmp_path, None, Extra(train=CRITIC))
    assert result.after >= result.before + 0.2
    # Of values from before each step, which know nothing of it: one that predicts the mean explains 0 at most.
    explained = [step["critic/explained_variance"] for step in read_metrics(tmp_path / "run/metrics.jsonl")[-8:]]
    assert mean(explained) > 0.1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tiny_preset_learns(tmp_path: Path):
    result = run_seed("tiny", 0, tmp_path, None, Extra())
    assert result.after >= result.before + 0.25
    assert result.after >= 0.6
