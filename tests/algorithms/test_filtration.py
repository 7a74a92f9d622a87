"""PF-PPO draws trajectories as often as its weights say."""

from collections import Counter

import pytest
import torch

from agentrl.algorithms.filters import PF_PPO_METHODS, draw

SCORES = [-1.0, 0.0, 0.5, 2.0]
WEIGHTS = {
    "pow": [s**2 for s in SCORES],
    "max_min": [1.0, 0.0, 0.0, 1.0],
    "max_random": [0.1, 0.1, 0.1, 0.4],
}


@pytest.mark.parametrize("method", PF_PPO_METHODS)
def test_trajectories_are_drawn_by_weight(method):
    generator, counts = torch.Generator().manual_seed(0), Counter()
    for _ in range(1000):
        drawn = draw(torch.tensor(SCORES), method, weight_pow=2.0, generator=generator).tolist()
        assert len(drawn) == 4
        assert drawn == sorted(drawn)
        counts.update(drawn)
    for i, weight in enumerate(WEIGHTS[method]):
        assert counts[i] / 4000 == pytest.approx(weight / sum(WEIGHTS[method]), abs=0.03)


@pytest.mark.parametrize("method", PF_PPO_METHODS)
def test_scores_of_zero_and_none_at_all(method):
    generator = torch.Generator().manual_seed(0)
    assert len(draw(torch.zeros(5), method, weight_pow=2.0, generator=generator)) == 5
    assert draw(torch.zeros(0), method, weight_pow=2.0, generator=generator).tolist() == []
