"""Importance weights against a scalar definition, and what they are for: an unbiased expectation."""

from math import exp

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.algorithms.correction import importance_weights

TOKEN = st.tuples(st.floats(-4, 0, width=32), st.floats(-4, 0, width=32), st.booleans())
SEQUENCES = st.lists(st.lists(TOKEN, min_size=1, max_size=6), min_size=1, max_size=5)


def reference(sequences, level, cap, mode):
    weights, capped = [], []
    for tokens in sequences:
        total = sum(mine - theirs for mine, theirs, made in tokens if made)
        for mine, theirs, made in tokens:
            ratio = exp(total if level == "sequence" else mine - theirs)
            outside = ratio > cap or (mode == "mask" and ratio < 1 / cap)
            kept = (0.0 if outside else ratio) if mode == "mask" else min(ratio, cap)
            weights.append(kept if made else 0.0)
            capped.append(float(outside and made))
    return weights, capped


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
@given(sequences=SEQUENCES, cap=st.sampled_from([1.0, 1.5, 3.0]))
def test_weights(sequences, cap, level, mode):
    mine, theirs, made = zip(*[token for tokens in sequences for token in tokens], strict=True)
    bounds = torch.tensor([0, *map(len, sequences)], dtype=torch.int32).cumsum(0).int()
    columns = torch.tensor(mine, dtype=torch.float64), torch.tensor(theirs, dtype=torch.float64), torch.tensor(made)
    weights, capped = importance_weights(*columns, bounds, level=level, cap=cap, mode=mode)
    expected, outside = reference(sequences, level, cap, mode)
    near_edge = [abs(w - edge) < 1e-9 for w in expected for edge in (cap, 1 / cap)]
    if any(near_edge) and mode == "mask":
        return  # rounding decides there
    assert weights.tolist() == pytest.approx(expected, rel=1e-9)
    if not any(near_edge):
        assert capped.tolist() == outside


def test_importance_weights_give_the_trainers_expectation():
    torch.manual_seed(0)
    engine, trainer = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
    value = torch.tensor([1.0, 5.0, -2.0])
    drawn = torch.multinomial(engine, 200_000, replacement=True)
    bounds = torch.tensor([0, len(drawn)], dtype=torch.int32)
    mask = torch.ones(len(drawn), dtype=torch.bool)
    columns = trainer.log()[drawn], engine.log()[drawn], mask, bounds
    weights, capped = importance_weights(*columns, level="token", cap=2.0, mode="truncate")
    assert capped.sum() == 0
    assert (weights * value[drawn]).mean().item() == pytest.approx((trainer * value).sum().item(), abs=0.03)
    assert value[drawn].mean().item() != pytest.approx((trainer * value).sum().item(), abs=0.03)
