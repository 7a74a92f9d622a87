"""KL estimators, the penalty in the reward, and the controllers."""

from math import exp, inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.algorithms.entropy import entropy_from_logits
from agentrl.algorithms.kl import KL_ESTIMATORS, KLController, kl_penalty, penalise
from agentrl.core.errors import UserError
from tests.algorithms.packings import packings
from tests.algorithms.verl_code import functions, masked, needs_verl

DEFINITIONS = {
    "kl": lambda d: d,
    "abs": abs,
    "mse": lambda d: d * d / 2,
    "low_var_kl": lambda d: min(exp(-d) + d - 1, 10.0),
}


@pytest.mark.parametrize("kind", DEFINITIONS)
@given(pairs=st.lists(st.tuples(st.floats(-5, 0), st.floats(-5, 0)), min_size=1, max_size=10))
def test_estimators_and_their_straight_through_gradients(kind, pairs):
    logprobs, ref = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    expected = torch.tensor([DEFINITIONS[kind](a - b) for a, b in pairs], dtype=torch.float64)
    torch.testing.assert_close(kl_penalty(logprobs, ref, kind), expected)
    logprobs.requires_grad_()
    straight = kl_penalty(logprobs, ref, kind + "+")
    torch.testing.assert_close(straight.detach(), expected)
    straight.sum().backward()
    torch.testing.assert_close(logprobs.grad, logprobs.detach() - ref)  # k2's gradient


def test_estimators_are_unbiased_where_they_claim_to_be():
    # E over p of k1, and of k3 where no token reaches its bound, is KL(p || q); k2+'s mean gradient is the KL's
    logits, noise = torch.randn(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q = logits + 0.5 * noise
    logits.requires_grad_()
    logp, logq = logits.log_softmax(-1), q.log_softmax(-1)
    p = logp.exp().detach()
    kl = (logp.exp() * (logp - logq)).sum()
    exact_value = kl.item()
    for kind in ("kl", "low_var_kl"):
        assert (p * kl_penalty(logp, logq, kind)).sum().item() == pytest.approx(exact_value)
    (exact,) = torch.autograd.grad(kl, logits, retain_graph=True)
    (straight,) = torch.autograd.grad((p * kl_penalty(logp, logq, "low_var_kl+")).sum(), logits)
    torch.testing.assert_close(straight, exact)


def test_low_var_kl_survives_far_apart_policies():
    assert kl_penalty(torch.tensor([-800.0]), torch.tensor([0.0]), "low_var_kl").isfinite().all()


def test_an_unknown_estimator_is_named():
    with pytest.raises(UserError, match="=full: choose kl, abs, mse, low_var_kl, or file.py:function"):
        kl_penalty(torch.zeros(1), torch.zeros(1), "full")


@given(packings())
def test_the_penalty_lands_on_model_tokens_only(packing):
    kl = torch.linspace(-1, 2, len(packing.mask))
    rewards, mean = penalise(packing.rewards, kl, packing.mask, packing.cu_seqlens, coefficient=0.5)
    for i, made_by_model in enumerate(packing.mask.tolist()):
        expected = packing.rewards[i].item() - (0.5 * kl[i].item() if made_by_model else 0.0)
        assert rewards[i].item() == pytest.approx(expected, abs=1e-6)
    made = [[kl[t].item() for t in span if packing.mask[t]] for span in packing.spans]
    means = [sum(values) / len(values) for values in made if values]
    assert mean == pytest.approx(sum(means) / max(len(means), 1), abs=1e-5)


def test_the_adaptive_controller_steers_and_resumes():
    controller = KLController(0.1, target=1.0, horizon=100)
    controller.update(5.0, 10)  # far above the target: the largest step up
    assert controller.value == pytest.approx(0.1 * (1 + 0.2 * 10 / 100))
    controller.update(0.9, 10)  # 10% below
    assert controller.value == pytest.approx(0.1 * 1.02 * (1 - 0.1 * 10 / 100))
    other = KLController(0.1, target=1.0, horizon=100)
    other.load_state_dict(controller.state_dict())
    assert other.value == controller.value


def test_the_adaptive_weight_stays_positive_however_many_samples():
    controller = KLController(0.1, target=1.0, horizon=100)
    controller.update(0.0, 650)
    assert controller.value == pytest.approx(0.1 * 0.8**6 * (1 - 0.2 * 50 / 100))


def test_the_fixed_controller_keeps_the_configured_weight():
    controller = KLController(0.1, horizon=100)
    controller.update(5.0, 10)
    controller.load_state_dict({"value": 0.7})
    assert controller.value == 0.1


def test_entropy_is_that_of_the_distribution():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [3.0, 1.0, float("-inf"), 0.5]])
    p = logits.softmax(-1).tolist()
    expected = [-sum(x * torch.tensor(x).log().item() for x in row if x > 0) for row in p]
    torch.testing.assert_close(entropy_from_logits(logits), torch.tensor(expected))


GRID = [sign * size for size in (0.0, 1e-6, 1e-3, 0.5, 2.5, 2.6, 2.7, 10, 11, 15, 19.9, 20, 20.1, 87, 89, 800, 1e18)
        for sign in (1.0, -1.0)]  # fmt: skip


@needs_verl
@pytest.mark.parametrize("kind", [name + plus for name in KL_ESTIMATORS for plus in ("", "+")])
def test_values_and_gradients_are_verls(kind):
    verl = functions("trainer/ppo/core_algos.py", ("kl_penalty", "kl_penalty_forward"), verl_F=masked())
    for ref in (0.0, -3.0):
        for dtype in (torch.float32, torch.float64):
            grid = torch.tensor([*GRID, inf, -inf, nan], dtype=dtype) + ref
            mine, theirs = grid.clone().requires_grad_(), grid.clone().requires_grad_()
            value, expected = (
                function(x, torch.full_like(grid, ref), kind)
                for function, x in ((kl_penalty, mine), (verl.kl_penalty, theirs))
            )
            torch.testing.assert_close(value[:-3], expected[:-3], rtol=1e-6, atol=1e-6)
            for column, other in ((value, expected), *_gradients(value, mine, expected, theirs)):
                assert other[~other.isfinite()].isnan().equal(column[~other.isfinite()].isnan())
                torch.testing.assert_close(column[:-3], other[:-3], rtol=1e-6, atol=1e-6)


def _gradients(value, mine, expected, theirs):
    value.nansum().backward()
    expected.nansum().backward()
    return [(mine.grad, theirs.grad)]


@pytest.mark.prevents("one token whose log-probs differ greatly between policy and reference dominates the batch")
def test_one_token_cannot_outweigh_the_batch():
    logprobs = torch.tensor([-15.0, -20.0, -1e4], requires_grad=True)
    values = kl_penalty(logprobs, torch.zeros(3), "low_var_kl")
    values.sum().backward()
    assert values.tolist() == [10.0] * 3
    assert logprobs.grad.abs().max() <= 10.0
