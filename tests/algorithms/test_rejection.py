"""Rejection and importance weights: verl's numbers on random batches, and bounds that make no sense."""

import random
from math import exp

import pytest
import torch

from agentrl.algorithms.correction import importance_weights, normalised
from agentrl.algorithms.rejection import RATIOS, VERL, bounds_of, criteria_of, kept_by, veto_below
from agentrl.core.errors import UserError
from tests.algorithms.verl_code import needs_verl, rollout_correction

LISTS = [(name, None) for name in VERL] + [("token_k1,seq_mean_k3", "0.5_2.0,0.2"), ("seq_sum_k2, seq_max_k3", 1.5)]


def padded(seed: int, rows: int = 7, most: int = 9):
    """(log-ratios [B, L], mask [B, L]) with holes in the mask, far-off tokens and a row without model tokens."""
    draw = torch.Generator().manual_seed(seed)
    gaps = torch.randn(rows, most, generator=draw, dtype=torch.float64) * 0.6
    gaps[0, 0], gaps[1, 1] = 30.0, -25.0
    mask = torch.rand(rows, most, generator=draw) < 0.7
    mask[2] = False
    return gaps, mask


def packed(table):
    """(what a table [B, L] is in a row, its bounds)."""
    rows, most = table.shape
    return table.reshape(-1), torch.arange(rows + 1, dtype=torch.int32) * most


def threshold_for(name: str, draw: random.Random):
    if not name.endswith("k1"):
        return draw.choice([0.05, "0.3", 1.0, 20.0])
    return draw.choice([1.3, "2.0", "0.6_1.6", "0.2_1.1", "0.999_1.001"])


@needs_verl
@pytest.mark.parametrize(("options", "threshold"), LISTS, ids=[name for name, _ in LISTS])
def test_rejection_is_verls(options, threshold):
    verl, draw = rollout_correction(), random.Random(options)
    for seed in range(12):
        gaps, mask = padded(seed)
        given = threshold_for(options, draw) if threshold is None else threshold
        expected, _ = verl.compute_rollout_rejection_mask(gaps, mask.long(), options, given)
        column, bounds = packed(gaps)
        kept = kept_by(criteria_of(options, given), column, mask.reshape(-1), bounds)
        assert kept.equal(expected.bool().reshape(-1)), (seed, given)


@needs_verl
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("threshold", [2.0, "3.0", "0.5_5.0"])
def test_weights_are_verls(level, threshold, normalise):
    verl = rollout_correction()
    for seed in range(5):
        gaps, mask = padded(seed)
        expected, _ = verl.compute_rollout_correction_weights(gaps, mask.long(), level, threshold, normalise)
        column, bounds = packed(gaps)
        flat, (lower, cap) = mask.reshape(-1), bounds_of(threshold)
        mode = "truncate" if lower is None else "mask"
        weights, _ = importance_weights(
            column, torch.zeros_like(column), flat, bounds, level=level, cap=cap, mode=mode, lower=lower
        )
        if normalise:
            weights = normalised(weights, flat, bounds, level)
        torch.testing.assert_close(weights, expected.reshape(-1).to(weights.dtype), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", RATIOS)
@pytest.mark.parametrize("bounds", [(1.6, None, 1 / 1.6), (1.6, 0.5, 0.5), ("0.5_1.6", None, 0.5)])
def test_our_own_words_bound_the_ratio_itself(name, bounds):
    threshold, lower, least = bounds
    gaps, mask = padded(5)
    column, cu_seqlens = packed(gaps)
    kept = kept_by(criteria_of(name, threshold, lower), column, mask.reshape(-1), cu_seqlens).reshape(mask.shape)
    for row, (values, made) in enumerate(zip(gaps.tolist(), mask.tolist(), strict=True)):
        own = [max(min(x, 20.0), -20.0) for x, here in zip(values, made, strict=True) if here]
        whole = {"sequence": sum(own), "geometric": sum(own) / max(len(own), 1)}
        for place, (value, here) in enumerate(zip(values, made, strict=True)):
            ratio = exp(whole.get(name, value))
            assert bool(kept[row, place]) == (here and least <= ratio <= 1.6)


def test_verls_k1_bounds_the_inverse_of_the_ratio():
    gaps, mask = torch.tensor([0.0, 1.0, -1.0]), torch.ones(3, dtype=torch.bool)
    bounds = torch.tensor([0, 3], dtype=torch.int32)
    assert kept_by(criteria_of("token", "0.1_1.5"), gaps, mask, bounds).tolist() == [True, False, True]
    assert kept_by(criteria_of("token_k1", "0.1_1.5"), gaps, mask, bounds).tolist() == [True, True, False]


def test_a_veto_drops_the_whole_sequence():
    gaps, mask = padded(3)
    column, bounds = packed(gaps)
    free = kept_by([veto_below(exp(-1.0))], column, mask.reshape(-1), bounds).reshape(mask.shape)
    hopeless = ((gaps < -1.0) & mask).any(-1, keepdim=True)
    assert free.equal(mask & ~hopeless)
    assert hopeless.any()
    assert free.any()


WRONG = [
    ("token_k4", 2.0, "token_k4 does not exist"),
    ("seq_max_k1", 2.0, "seq_max_k1 does not exist"),
    ("token_k3", None, "token_k3 needs"),
    ("token_k2", "0.5_2.0", "one upper bound"),
    ("token_k1,seq_mean_k1,token", "1.5,2.0", "one for each of"),
    ("token", "a_b", "no number"),
    ("token", "2.0_0.5", "the lower one first"),
    ("token_k1", 0.52, "write both bounds"),
    ("token", -1, "over 0"),
]


@pytest.mark.parametrize(("options", "threshold", "message"), WRONG)
def test_invalid_options_are_errors(options, threshold, message):
    with pytest.raises(UserError, match=message):
        criteria_of(options, threshold)


def test_nothing_named_rejects_nothing():
    assert criteria_of(None, "1.5") == ()
    assert criteria_of("token,token", 3.0) == criteria_of("token", "3.0")
