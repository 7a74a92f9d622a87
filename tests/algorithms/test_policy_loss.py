"""PPO's clip against a scalar definition, value and gradient."""

from math import exp

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.algorithms import ppo_clip_loss

LOW, HIGH, C = 0.2, 0.3, 3.0
FLOATS = st.floats(-3, 3, width=32)


def reference(logprob, old, advantage):
    """(loss, d loss / d logprob, clipped, dual clipped) of one token."""
    ratio = exp(logprob - old)
    cut = min(max(ratio, 1 - LOW), 1 + HIGH)
    loss = max(-advantage * ratio, -advantage * cut)
    clipped = -advantage * cut > -advantage * ratio
    slope = 0.0 if clipped else -advantage * ratio
    if advantage < 0 and loss > -advantage * C:
        return -advantage * C, 0.0, clipped, True
    return loss, slope, clipped, False


@given(st.lists(st.tuples(FLOATS, FLOATS, FLOATS), min_size=1, max_size=20))
def test_value_and_gradient(tokens):
    logprobs, old, advantages = (torch.tensor(column, dtype=torch.float64) for column in zip(*tokens, strict=True))
    logprobs.requires_grad_()
    loss, details = ppo_clip_loss(logprobs, old, advantages, low=LOW, high=HIGH, c=C)
    loss.sum().backward()
    for i, token in enumerate(tokens):
        value, slope, clipped, dual = reference(*token)
        assert loss[i].item() == pytest.approx(value, rel=1e-9, abs=1e-12)
        assert bool(details["clipped"][i]) == clipped
        assert bool(details["clipped_dual"][i]) == dual
        at_edge = any(abs(exp(token[0] - token[1]) - edge) < 1e-9 for edge in (1 - LOW, 1 + HIGH, C, 1))
        if not at_edge and token[2] != 0:
            assert logprobs.grad[i].item() == pytest.approx(slope, rel=1e-9, abs=1e-12)


def test_on_policy_gradient_is_that_of_reinforce():
    logprobs = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    advantages = torch.tensor([1.0, -2.0, 0.5])
    loss, _ = ppo_clip_loss(logprobs, logprobs.detach(), advantages, low=LOW, high=HIGH, c=C)
    loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, -advantages)


def test_a_runaway_ratio_stays_finite():
    loss, _ = ppo_clip_loss(torch.tensor([0.0]), torch.tensor([-500.0]), torch.tensor([-1.0]), low=LOW, high=HIGH, c=C)
    assert loss.item() == C
