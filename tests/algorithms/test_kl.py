"""KL estimators, the penalty in the reward, and the controllers."""

from math import exp

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.algorithms import AdaptiveKL, entropy_from_logits, kl_controller, kl_penalty, penalise
from agentrl.errors import UserError
from tests.algorithms.packings import packings

DEFINITIONS = {
    "kl": lambda d: d,
    "abs": abs,
    "mse": lambda d: d * d / 2,
    "low_var_kl": lambda d: exp(-d) + d - 1,
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
    # E over p of k1 and k3 is KL(p || q); k2+'s mean gradient is the KL's gradient
    logits, q = torch.randn(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
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
    with pytest.raises(UserError, match="'full' does not exist"):
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
    controller = kl_controller("adaptive", 0.1, target=1.0, horizon=100)
    controller.update(5.0, 10)  # far above the target: the largest step up
    assert controller.value == pytest.approx(0.1 * (1 + 0.2 * 10 / 100))
    controller.update(0.9, 10)  # 10% below
    assert controller.value == pytest.approx(0.1 * 1.02 * (1 - 0.1 * 10 / 100))
    other = AdaptiveKL(0.1, target=1.0, horizon=100)
    other.load_state_dict(controller.state_dict())
    assert other.value == controller.value


def test_the_adaptive_weight_stays_positive_however_many_samples():
    controller = kl_controller("adaptive", 0.1, target=1.0, horizon=100)
    controller.update(0.0, 650)
    assert controller.value == pytest.approx(0.1 * 0.8**6 * (1 - 0.2 * 50 / 100))


def test_the_fixed_controller_keeps_the_configured_weight():
    controller = kl_controller("fixed", 0.1, target=1.0, horizon=100)
    controller.update(5.0, 10)
    controller.load_state_dict({"value": 0.7})
    assert controller.value == 0.1
    with pytest.raises(UserError, match=r"kl_ctrl\.type 'slow'"):
        kl_controller("slow", 0.1, target=1.0, horizon=100)


def test_entropy_is_that_of_the_distribution():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [3.0, 1.0, float("-inf"), 0.5]])
    p = logits.softmax(-1).tolist()
    expected = [-sum(x * torch.tensor(x).log().item() for x in row if x > 0) for row in p]
    torch.testing.assert_close(entropy_from_logits(logits), torch.tensor(expected))
