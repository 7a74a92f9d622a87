"""Drawing: uniform numbers, inversion, filters."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.rollout.engine import Sampling
from agentrl.rollout.engines.hf.sampler import invert, sample, uniform


def test_uniforms_are_uniform_and_unrelated() -> None:
    """Over positions of a seed and over neighbouring seeds: moments, and correlation of neighbours."""
    for numbers in ([uniform(7, i) for i in range(20000)], [uniform(i, 0) for i in range(20000)]):
        drawn = torch.tensor(numbers, dtype=torch.float64)
        assert drawn.min() >= 0
        assert drawn.max() < 1
        assert abs(drawn.mean() - 0.5) < 0.01
        assert abs(drawn.var() - 1 / 12) < 0.003
        assert abs(torch.corrcoef(torch.stack([drawn[:-1], drawn[1:]]))[0, 1]) < 0.03
        assert (torch.histc(drawn, 20, 0, 1) / 1000 - 1).abs().max() < 0.15


def test_seeds_beyond_64_bits_and_below_zero_work() -> None:
    assert 0 <= uniform(-5, 3) < 1
    assert 0 <= uniform(2**70, 3) < 1


@given(
    st.lists(st.sampled_from([0.0, 1e-30, 1e-8, 0.1, 1.0, 5.0]), min_size=1, max_size=400).filter(any),
    st.floats(0, 1, exclude_max=True, width=32),
)
def test_inversion_finds_the_interval(weights: list[float], share: float) -> None:
    row = torch.tensor([weights])
    index = int(invert(row, torch.tensor([share]))[0])
    assert weights[index] > 0, "a token without probability is never drawn"
    total = sum(weights)
    below = sum(weights[:index]) / total
    above = sum(weights[: index + 1]) / total
    assert below - 1e-4 <= share <= above + 1e-4


def test_inversion_at_the_ends() -> None:
    row = torch.zeros(2, 300)
    row[:, 5] = row[:, 290] = 0.5
    assert invert(row, torch.tensor([0.0, 1 - 2**-24])).tolist() == [5, 290]


@pytest.mark.parametrize(
    "sampling",
    [Sampling(1), Sampling(1, temperature=0.7), Sampling(1, top_p=0.9), Sampling(1, top_k=50), Sampling(1, min_p=0.1)],
)
def test_a_row_draws_the_same_whatever_the_other_rows(sampling: Sampling) -> None:
    """The same tokens, given the same logits, whatever the others' settings; sums over them may round differently."""
    torch.manual_seed(0)
    logits = torch.randn(9, 1000) * 3
    others = [Sampling(1, temperature=0), Sampling(1), Sampling(1, top_p=0.5), Sampling(1, top_k=400)]
    mixed = [sampling if i % 2 == 0 else others[i // 2] for i in range(9)]
    uniforms = [uniform(i, 0) for i in range(9)]
    tokens, logprobs = sample(logits, mixed, uniforms)
    for i in range(9):
        alone = sample(logits[i : i + 1], [mixed[i]], [uniforms[i]])
        assert alone[0] == [tokens[i]]
        assert alone[1] == pytest.approx([logprobs[i]], abs=1e-6)


@pytest.mark.parametrize("sampling", [Sampling(1, top_p=0.999), Sampling(1, top_p=1e-9), Sampling(1, min_p=1.0)])
def test_filters_on_a_flat_vocabulary(sampling: Sampling) -> None:
    """The nucleus is larger than the first guess at candidates, or as small as can be."""
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)) * 0.1
    tokens, logprobs = sample(logits, [sampling] * 3, [0.1, 0.5, 0.9])
    if sampling.top_p == 0.999:
        expected = torch.log_softmax(logits, -1)[torch.arange(3), tokens]
        assert torch.allclose(torch.tensor(logprobs), expected - torch.log(torch.tensor(0.999)), atol=1e-3)
        assert tokens != logits.argmax(-1).tolist()
    else:
        assert tokens == logits.argmax(-1).tolist()
        assert logprobs == [0.0] * 3


def test_logits_that_are_not_finite_show_in_the_logprob() -> None:
    for bad in (float("nan"), float("inf")):
        logits = torch.zeros(2, 500)
        logits[1, 400] = bad
        tokens, logprobs = sample(logits, [Sampling(1)] * 2, [0.5, 0.5])
        assert 0 <= tokens[1] < 500
        assert not torch.tensor(logprobs[1]).isfinite()
        assert torch.tensor(logprobs[0]).isfinite()
