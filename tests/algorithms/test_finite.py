"""No finite input, however far policies are apart, makes a loss or its gradient anything but finite."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.algorithms import POLICY_LOSSES, bind_loss
from agentrl.algorithms.aggregate import token_weights
from agentrl.algorithms.correction import importance_weights
from agentrl.algorithms.entropy import entropy_from_logits
from agentrl.algorithms.kl import KL_ESTIMATORS, kl_of_logits, kl_penalty
from agentrl.algorithms.losses.clipped import clipped_value_loss

OPTIONS = {"low": 0.2, "high": 0.3, "c": 3.0, "tau_pos": 1.0, "tau_neg": 2.0, "ppo_kl_coef": 0.7,
           "clip_cov_ratio": 0.3, "clip_cov_lb": 0.05, "clip_cov_ub": 2.0, "kl_cov_ratio": 0.3}  # fmt: skip
LOGPROB = st.one_of(
    st.floats(-50, 0, width=32, allow_subnormal=False), st.floats(-(2.0**59), 0, width=32, allow_subnormal=False)
)
SCORE = st.one_of(
    st.floats(-10, 10, width=32, allow_subnormal=False), st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
)
TOKENS = st.lists(st.tuples(LOGPROB, LOGPROB, SCORE, st.booleans()), min_size=1, max_size=12)


def columns(tokens):
    logprobs, old, advantages, mask = (torch.tensor(column) for column in zip(*tokens, strict=True))
    logprobs, old, advantages = (torch.where(mask, column.float(), 0.0) for column in (logprobs, old, advantages))
    return logprobs.requires_grad_(), old, advantages, mask, torch.tensor([0, len(tokens)], dtype=torch.int32)


def assert_finite(loss, leaf):
    assert loss.isfinite().all(), loss
    if loss.requires_grad:
        (gradient,) = torch.autograd.grad(loss.sum(), leaf)
        assert gradient.isfinite().all(), gradient


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
@given(tokens=TOKENS)
def test_policy_losses(name, tokens):
    logprobs, old, advantages, mask, bounds = columns(tokens)
    loss = bind_loss(name, **OPTIONS)
    chosen = loss.choose(old, advantages, mask, torch.Generator()) if loss.chooses and mask.any() else mask & False
    losses, details = loss(logprobs, old, advantages, mask=mask, cu_seqlens=bounds, chosen=chosen)
    for level in ("token", "sequence"):
        weights, _ = importance_weights(old, advantages, mask, bounds, level=level, cap=2.0, mode="truncate")
        assert weights.isfinite().all()
    assert_finite(losses * token_weights(mask, bounds, "token-mean"), logprobs)
    assert all(value.isfinite().all() for value in details.values())


@pytest.mark.parametrize("kind", [name + plus for name in KL_ESTIMATORS for plus in ("", "+")])
@given(tokens=TOKENS)
def test_kl_estimators(kind, tokens):
    logprobs, ref, *_ = columns(tokens)
    assert_finite(kl_penalty(logprobs, ref, kind), logprobs)


@given(tokens=TOKENS)
def test_value_loss(tokens):
    _, old, returns, *_ = columns(tokens)
    values = returns.flip(0).clone().requires_grad_()
    assert_finite(clipped_value_loss(values, old.clamp(min=-1e6), returns, cliprange=0.5)[0], values)


@given(st.lists(st.tuples(LOGPROB, LOGPROB), min_size=2, max_size=8))
def test_entropy_and_the_exact_kl(pairs):
    logits, other = (torch.tensor(column, dtype=torch.float32) for column in zip(*pairs, strict=True))
    logits.requires_grad_()
    assert_finite(entropy_from_logits(logits), logits)
    assert_finite(kl_of_logits(logits, other), logits)


def test_a_token_of_no_probability_has_no_entropy_and_no_gradient():
    logits = torch.tensor([0.0, 1.0, -300.0, float("-inf")], requires_grad=True)
    assert_finite(entropy_from_logits(logits), logits)
    assert_finite(kl_of_logits(logits, torch.zeros(4)), logits)
