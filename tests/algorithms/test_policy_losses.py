"""Every policy loss against a scalar definition, value and gradient, and against itself under every cut."""

from math import exp, inf
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentrl.algorithms import POLICY_LOSSES, bind_loss
from agentrl.algorithms.losses.covariance import covariances
from agentrl.core.errors import UserError
from tests.algorithms.packings import Packing, packings

OPTIONS = {"low": 0.2, "high": 0.3, "c": 3.0, "tau_pos": 1.0, "tau_neg": 2.0, "ppo_kl_coef": 0.7,
           "clip_cov_ratio": 0.3, "clip_cov_lb": 0.05, "clip_cov_ub": 2.0, "kl_cov_ratio": 0.3}  # fmt: skip


def clipped(ratio: Tensor, a: float) -> Tensor:
    return torch.max(-a * ratio, -a * ratio.clamp(0.8, 1.3))


def vanilla(logp: Tensor, d: Tensor, a: float, chosen: bool) -> Tensor:
    loss = clipped(d.exp(), a)
    return torch.min(loss, torch.tensor(-a * 3.0)) if a < 0 else loss


def sapo(logp: Tensor, d: Tensor, a: float, chosen: bool) -> Tensor:
    tau = 1.0 if a > 0 else 2.0
    return -a * torch.sigmoid(tau * (d.exp() - 1)) * 4 / tau


TOKENWISE = {
    "vanilla": vanilla,
    "sapo": sapo,
    "cispo": lambda logp, d, a, chosen: -min(max(exp(d.item()), 0.8), 1.3) * a * logp,
    "gpg": lambda logp, d, a, chosen: -a * logp,
    "clip_cov": lambda logp, d, a, chosen: torch.zeros(()) if chosen else clipped(d.exp(), a),
    "kl_cov": lambda logp, d, a, chosen: -a * d.exp() + (0.7 * d.abs() if chosen else 0.0),
}


def gspo(logp: list[Tensor], gaps: list[Tensor], advantages: list[float]) -> list[Tensor]:
    mean = sum(gap.item() for gap in gaps) / len(gaps)
    return [clipped(exp(mean) * (x - x.detach()).exp(), a) for x, a in zip(logp, advantages, strict=True)]


def geo_mean(logp: list[Tensor], gaps: list[Tensor], advantages: list[float]) -> list[Tensor]:
    signs = [(a > 0) - (a < 0) for a in advantages]
    kept = [s * torch.min(s * gap, s * gap.clamp(-0.2, 0.3)) for s, gap in zip(signs, gaps, strict=True)]
    return [-a * (sum(kept) / len(kept)).exp() for a in advantages]


SEQUENCEWISE = {"gspo": gspo, "geo_mean": geo_mean}


def slow(name: str, logp: Tensor, old: Tensor, adv: Tensor, packing: Packing, chosen: Tensor) -> Tensor:
    """The losses of all model tokens, one at a time: [T]."""
    losses = [torch.zeros((), dtype=torch.float64)] * len(adv)
    for span in packing.spans:
        made = [t for t in span if packing.mask[t]]
        gaps, advantages = [logp[t] - old[t] for t in made], [adv[t].item() for t in made]
        if name in SEQUENCEWISE:
            values = SEQUENCEWISE[name]([logp[t] for t in made], gaps, advantages) if made else []
        else:
            columns = zip(made, gaps, advantages, strict=True)
            values = [TOKENWISE[name](logp[t], gap, a, bool(chosen[t])) for t, gap, a in columns]
        for t, value in zip(made, values, strict=True):
            losses[t] = value.double()
    return torch.stack(losses)


def columns(packing: Packing, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    old = -torch.rand(len(packing.mask), generator=draw, dtype=torch.float64) * 3
    logp = old + torch.randn(len(old), generator=draw, dtype=torch.float64) * 0.4
    adv = torch.randn(len(old), generator=draw, dtype=torch.float64)
    return tuple(torch.where(packing.mask, column, 0.0) for column in (logp, old, adv))


def chosen_by(name: str, old: Tensor, adv: Tensor, mask: Tensor, seed: int = 0) -> Tensor:
    loss = bind_loss(name, **OPTIONS)
    return loss.choose(old, adv, mask, torch.Generator().manual_seed(seed)) if loss.chooses else torch.zeros_like(mask)


def test_each_loss_has_a_definition_here_or_a_test_of_its_own() -> None:
    others = set(POLICY_LOSSES) - {*TOKENWISE, *SEQUENCEWISE}
    assert not [name for name in others if not Path(__file__).with_name(f"test_{name}.py").exists()]


@pytest.mark.parametrize("name", [*TOKENWISE, *SEQUENCEWISE])
@given(packing=packings(), seed=st.integers(0, 99))
def test_value_and_gradient(name, packing, seed):
    logp, old, adv = columns(packing, seed)
    chosen = chosen_by(name, old, adv, packing.mask)
    mine, theirs = logp.clone().requires_grad_(), logp.clone().requires_grad_()
    loss, details = bind_loss(name, **OPTIONS)(
        mine, old, adv, mask=packing.mask, cu_seqlens=packing.cu_seqlens, chosen=chosen
    )
    expected = slow(name, theirs, old, adv, packing, chosen)
    torch.testing.assert_close(torch.where(packing.mask, loss, 0.0), expected)
    weights = torch.linspace(0.5, 1.5, len(adv), dtype=torch.float64) * packing.mask
    (weights * loss).sum().backward()
    if expected.requires_grad:
        (weights * expected).sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert not any(value.requires_grad for value in details.values())
    assert all(value.shape == adv.shape for value in details.values())


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
@given(packing=packings(), data=st.data())
def test_any_split_into_micro_batches_gives_the_whole_loss(name, packing, data):
    logp, old, adv = columns(packing, 3)
    loss, chosen = bind_loss(name, **OPTIONS), chosen_by(name, old, adv, packing.mask)
    whole = loss(logp, old, adv, mask=packing.mask, cu_seqlens=packing.cu_seqlens, chosen=chosen)[0]
    first = data.draw(st.integers(0, len(packing.spans)))
    for sequences in (packing.spans[:first], packing.spans[first:]):
        tokens = [t for span in sequences for t in span]
        bounds = torch.tensor([0, *map(len, sequences)]).cumsum(0).int()
        part = loss(logp[tokens], old[tokens], adv[tokens], mask=packing.mask[tokens], cu_seqlens=bounds,
                    chosen=chosen[tokens])[0]  # fmt: skip
        torch.testing.assert_close(part, whole[tokens])


@pytest.mark.parametrize("name", sorted(set(POLICY_LOSSES) - {"clip_cov"}))
def test_on_policy_the_gradient_is_that_of_reinforce(name):
    logp = torch.tensor([0.0, -1.0, -2.0, -3.0], requires_grad=True)
    adv = torch.tensor([0.0, 0.5, 0.5, 0.5])
    mask = torch.tensor([False, True, True, True])
    loss, _ = bind_loss(name, **OPTIONS)(
        logp, logp.detach(), adv, mask=mask, cu_seqlens=torch.tensor([0, 4]), chosen=torch.zeros_like(mask)
    )
    loss.sum().backward()
    torch.testing.assert_close(logp.grad, -adv)


@given(packing=packings(), seed=st.integers(0, 99))
def test_which_tokens_the_covariance_losses_choose(packing, seed):
    _, old, adv = columns(packing, seed)
    made = [t for t, made in enumerate(packing.mask.tolist()) if made]
    mean_adv, mean_old = (sum(column[t] for t in made) / max(len(made), 1) for column in (adv, old))
    covariance = {t: float((adv[t] - mean_adv) * (old[t] - mean_old)) for t in made}
    got = covariances(old, adv, packing.mask)
    assert [got[t].item() for t in made] == pytest.approx(list(covariance.values()))
    assert all(value == -inf for value in got[~packing.mask].tolist())
    number = max(int(0.3 * len(made)), 1)
    largest = set(chosen_by("kl_cov", old, adv, packing.mask).nonzero().flatten().tolist())
    assert len(largest) == min(number, len(made))
    assert all(covariance[t] >= covariance[u] for t in largest for u in set(made) - largest)
    drawn = set(chosen_by("clip_cov", old, adv, packing.mask).nonzero().flatten().tolist())
    candidates = [t for t in made if 0.05 < covariance[t] < 2.0]
    assert drawn <= set(candidates)
    assert len(drawn) == min(number, len(candidates))


def test_clip_cov_draws_by_its_generator():
    draw = torch.Generator().manual_seed(0)
    old, adv = -torch.rand(400, generator=draw), torch.randn(400, generator=draw)
    mask = torch.ones(400, dtype=torch.bool)
    sets = [chosen_by("clip_cov", old, adv, mask, seed) for seed in (0, 0, 1)]
    assert sets[0].equal(sets[1])
    assert not sets[0].equal(sets[2])


def test_aggregation_and_names():
    means = {name: [bind_loss(name).aggregation(given) for given in (None, "token-sum")] for name in POLICY_LOSSES}
    by_sequence = "seq-mean-token-mean"
    assert means.pop("gspo") == [by_sequence, "token-sum"]
    assert means.pop("geo_mean") == means.pop("sapo") == [by_sequence, by_sequence]
    assert list(means.values()) == [["token-mean", "token-sum"]] * len(means)
    with pytest.raises(UserError, match=r"loss_mode=ppo: choose vanilla, .*sapo, or file.py:function"):
        bind_loss("ppo")
    assert all("arXiv" in loss.__doc__ for loss in map(POLICY_LOSSES.__getitem__, POLICY_LOSSES))


@pytest.mark.parametrize("name", ["vanilla", "geo_mean"])
def test_nothing_is_clipped_where_there_is_no_advantage(name):
    old, mask = torch.tensor([-1.0, -1.0]), torch.ones(2, dtype=torch.bool)
    _, details = bind_loss(name, **OPTIONS)(
        old + 1.0, old, torch.zeros(2), mask=mask, cu_seqlens=torch.tensor([0, 2]), chosen=~mask
    )
    assert not details["clipped"].any()
