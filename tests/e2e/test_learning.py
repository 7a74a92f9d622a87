"""The point of it all: held-out success rises. The whole `make tiny` recipe, one seed, some minutes."""

from pathlib import Path

import pytest

from agentrl.tracking import read_metrics
from benchmarks.demo_seeds import Extra, run_seed

CRITIC = ["algorithm.adv_estimator=gae", "critic.optim.lr=2e-4", "trainer.critic_warmup=2"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_learns_with_a_critic_too(tmp_path: Path):
    result = run_seed("tiny", 0, tmp_path, None, Extra(train=CRITIC))
    assert result.after >= result.before + 0.2
    last = read_metrics(tmp_path / "run/metrics.jsonl")[-1]
    assert last["critic/explained_variance"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tiny_preset_learns(tmp_path: Path):
    result = run_seed("tiny", 0, tmp_path, None, Extra())
    assert result.after >= result.before + 0.25
    assert result.after >= 0.6
