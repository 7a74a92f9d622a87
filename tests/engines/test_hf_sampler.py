"""Drawing: noise, the race, filters."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engines.engine import Sampling
from agentrl.engines.hf.sampler import race, sample, streams, times

IDS = torch.arange(20000)


def by_position(count: int) -> torch.Tensor:
    return streams([0] * count, range(count))[:, None]


def by_seed(count: int) -> torch.Tensor:
    return streams(range(count), [0] * count)


def test_a_stream_is_that_of_the_published_function() -> None:
    """SplitMix64's mixing function over seed and position, in plain integers."""

    def mixed(z: int) -> int:
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    seeds, positions = [0, 7, -5, 2**63 - 1, 2**63, 2**70 + 3], [0, 1, 5, 2**20, 9, 3]
    expected = [
        mixed((mixed(s % 2**64) + (p + 1) * 0x9E3779B97F4A7C15) % 2**64) for s, p in zip(seeds, positions, strict=True)
    ]
    assert [value % 2**64 for value in streams(seeds, positions).tolist()] == expected


@pytest.mark.parametrize("over", ["tokens", "positions", "seeds"])
def test_noise_is_exponential_and_unrelated(over: str) -> None:
    """Moments, histogram and correlation of neighbours, along each thing the noise depends on."""
    if over == "tokens":
        drawn = times(by_position(1), IDS)[0]
    elif over == "positions":
        drawn = times(by_position(20000), torch.tensor([5]))[:, 0]
    else:
        drawn = times(by_seed(20000)[:, None], torch.tensor([5]))[:, 0]
    assert drawn.min() > 0
    assert abs(drawn.mean() - 1) < 0.03
    assert abs(drawn.var() - 1) < 0.1
    uniform = torch.exp(-drawn)
    assert (torch.histc(uniform, 20, 0, 1) / 1000 - 1).abs().max() < 0.15
    assert abs(torch.corrcoef(torch.stack([uniform[:-1], uniform[1:]]))[0, 1]) < 0.03


def test_small_probabilities_are_drawn_as_often_as_they_say() -> None:
    """One in 100,000 in a flat vocabulary of 49,152, where one float32 uniform number would do badly."""
    weights = torch.ones(1, 49152)
    weights[0, 40000] = 500.0  # about 1 %
    tokens = race(weights.expand(3000, -1), by_position(3000))
    assert 12 <= (tokens == 40000).sum() <= 55
    assert abs(tokens.float().mean() - 24576) < 1500
    assert len(tokens.unique()) > 2700


@given(st.lists(st.sampled_from([0.0, 1e-30, 1e-8, 0.1, 5.0]), min_size=1, max_size=400).filter(any), st.integers(0))
def test_what_has_no_weight_never_wins(weights: list[float], seed: int) -> None:
    index = int(race(torch.tensor([weights]), streams([seed], [0])[:, None])[0])
    assert weights[index] > 0


def test_rounding_hardly_ever_turns_a_race() -> None:
    """Probabilities that differ in their last bits draw the same tokens, over a large flat vocabulary too."""
    torch.manual_seed(0)
    logits = torch.randn(400, 49152)
    noisy = logits + 1e-6 * torch.randn_like(logits)
    plain = [Sampling(1)] * 400
    names = by_seed(400)
    assert sample(logits, plain, names)[0] == sample(noisy, plain, names)[0]


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
    names = by_seed(9)
    tokens, logprobs = sample(logits, mixed, names)
    for i in range(9):
        alone = sample(logits[i : i + 1], [mixed[i]], names[i : i + 1])
        assert alone[0] == [tokens[i]]
        assert alone[1] == pytest.approx([logprobs[i]], abs=1e-6)


@pytest.mark.parametrize("sampling", [Sampling(1, top_p=0.999), Sampling(1, top_p=1e-9), Sampling(1, min_p=1.0)])
def test_filters_on_a_flat_vocabulary(sampling: Sampling) -> None:
    """The nucleus is larger than the first guess at candidates, or as small as can be."""
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)) * 0.1
    tokens, logprobs = sample(logits, [sampling] * 3, by_seed(3))
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
        tokens, logprobs = sample(logits, [Sampling(1)] * 2, by_seed(2))
        assert 0 <= tokens[1] < 500
        assert not torch.tensor(logprobs[1]).isfinite()
        assert torch.tensor(logprobs[0]).isfinite()
