"""Rollout correction within the update: every preset of verl's, by verl's own code, and what is rejected is gone."""

import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from agentrl.algorithms import bind_loss
from agentrl.algorithms.aggregate import token_weights
from agentrl.algorithms.segments import sequence_of, sum_by
from agentrl.config.schema import Actor, Algorithm, Optim, RolloutCorrection
from agentrl.training import ComputeAdvantages, PolicyActor
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.parallel.ranks import ALONE
from agentrl.training.update.off_policy import (
    batch_importance,
    correct_batch,
    loss_has_ratio,
    needs_batch_correction,
)
from agentrl.training.update.optimizer import LossScale
from agentrl.training.update.report import PolicyReport
from tests.algorithms.verl_code import VERL, functions, masked, needs_verl, rollout_correction
from tests.training.test_actor import assert_same
from tests.training.tiny import CPU, random_batch, tiny

LENGTHS = [7, 5, 12, 4, 9, 6, 3, 8]
PRESETS = (
    *("decoupled_token_is", "decoupled_seq_is", "decoupled_token_icepop", "decoupled_seq_is_rs", "decoupled_geo_rs"),
    *("decoupled_geo_rs_seq_tis", "decoupled_geo_rs_token_tis", "decoupled_k3_rs", "decoupled_k3_rs_seq_tis"),
    *("decoupled_k3_rs_token_tis", "bypass_ppo_clip", "bypass_ppo_clip_geo_rs", "bypass_ppo_clip_k3_rs"),
    *("bypass_pg_is", "bypass_pg_token_icepop", "bypass_pg_geo_rs", "bypass_pg_geo_rs_seq_tis"),
    *("bypass_pg_geo_rs_token_tis", "disabled"),
)
MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")


def preset_of(name):
    file = "trainer/config/algorithm.py"
    more = {"BaseConfig": object, "dataclass": dataclass}
    config = functions(file, ["RolloutCorrectionConfig"], **more).RolloutCorrectionConfig
    return vars(getattr(config, name)())


@needs_verl
def test_no_preset_is_missing():
    text = (VERL / "trainer/config/algorithm.py").read_text(encoding="utf-8")
    found = {
        line.split("(")[0].split()[-1] for line in text.splitlines() if line.startswith("    def ") and "cls" in line
    }
    found |= {name for name in PRESETS if f"def {name}(" in text}
    assert {name for name in found if name.startswith(("decoupled", "bypass", "disabled"))} == set(PRESETS)


def batch_of(seed, scale):
    """A batch whose log-probs, old log-probs and engine's log-probs all differ."""
    draw = torch.Generator().manual_seed(seed)
    batch = random_batch(LENGTHS, seed=seed)
    engine, old, now = (torch.randn(batch.num_tokens, generator=draw) * scale - 1.5 for _ in range(3))
    batch.rollout_logprobs = torch.where(batch.mask, engine, 0.0)
    batch.advantages = torch.randn(batch.num_tokens, generator=draw) * batch.mask
    return batch, torch.where(batch.mask, old, 0.0), torch.where(batch.mask, now, 0.0)


def padded(column, lengths):
    return torch.nn.utils.rnn.pad_sequence(list(column.split(lengths)), batch_first=True)


def verls_loss(verl, preset, batch, old, now, mode):
    """(loss, its gradient by log-prob) by verl's functions."""
    lengths = batch.lengths
    mask, engine, old, advantages = (
        padded(c, lengths) for c in (batch.mask.long(), batch.rollout_logprobs, old, batch.advantages)
    )
    now = padded(now, lengths).requires_grad_()
    config = SimpleNamespace(
        clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, global_batch_info={},
        policy_loss={"rollout_correction": preset}, get=lambda name, default=None: default,
    )  # fmt: skip
    shared = {"loss_agg_mode": mode, "config": config}
    if preset["bypass_mode"]:
        loss, _ = verl.compute_policy_loss_bypass_mode(engine, now, advantages, mask, **shared)
    else:
        names = [name for name in preset if name.startswith("rollout_")]
        weights, kept, _ = verl.correction.compute_rollout_correction_and_rejection_mask(
            old, engine, mask, **{name: preset[name] for name in names}
        )
        weights = None if weights is None else weights.batch["rollout_is_weights"]
        loss, _ = verl.compute_policy_loss_vanilla(old, now, advantages, kept, **shared, rollout_is_weights=weights)
    loss.backward()
    return loss.detach(), torch.cat([row[:n] for row, n in zip(now.grad, lengths, strict=True)])


def our_loss(preset, batch, old, now, mode):
    correction = RolloutCorrection(**preset)
    now = now.clone().requires_grad_()
    drawn_by = now.detach() if correction.bypass_mode else old
    before = batch.rollout_logprobs if correction.bypass_mode else old
    if needs_batch_correction(correction):
        batch = correct_batch(batch, drawn_by, correction)
    loss = bind_loss("vanilla", low=0.2, high=0.2, c=3.0)
    if correction.bypass_mode and not loss_has_ratio(correction):
        loss = bind_loss("gpg")
    losses, _ = loss(now, before, batch.advantages, mask=batch.mask, cu_seqlens=batch.cu_seqlens)
    importance, _ = batch_importance(batch, drawn_by, correction)
    losses = losses if importance is None else losses * importance
    total = (losses * token_weights(batch.mask, batch.cu_seqlens, mode)).sum()
    total.backward()
    return total.detach(), now.grad


@needs_verl
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_verls(name, monkeypatch):
    names = (
        "agg_loss",
        "compute_policy_loss_vanilla",
        "compute_policy_loss_reinforce",
        "compute_policy_loss_bypass_mode",
    )
    verl = functions("trainer/ppo/core_algos.py", names, verl_F=masked())
    verl.correction = rollout_correction()
    for parent in ("verl", "verl.trainer", "verl.trainer.ppo"):
        monkeypatch.setitem(sys.modules, parent, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "verl.trainer.ppo.rollout_corr_helper", verl.correction)
    preset = preset_of(name)
    compared = 0
    for seed, scale in enumerate((0.0005, 0.03, 0.4, 1.5)):
        batch, old, now = batch_of(seed, scale)
        for mode in MODES:
            expected, slope = verls_loss(verl, preset, batch, old, now, mode)
            if expected.isnan():
                continue  # everything is rejected, and verl divides by 0
            loss, gradient = our_loss(preset, batch, old, now, mode)
            torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(gradient, slope, rtol=1e-5, atol=1e-6)
            compared += 1
    assert compared >= len(MODES)


def gradients(correction, batch, **settings):
    """(the gradient that an update hands to the optimizer, its metrics)."""
    module = tiny()
    actor = PolicyActor(
        module,
        actor=Actor(ppo_mini_batch_size=99, grad_clip=0.0, optim=Optim(lr=1e-3), **settings),
        temperature=1.0,
        device=CPU,
        total_steps=10,
        rollout_correction=correction,
    )
    caught = {}

    def keep_and_clear():
        caught.update({n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None})
        module.zero_grad()
        return 1.0

    actor.optimizer.step = keep_and_clear
    return caught, actor.update(batch)


def drawn_off_policy():
    """A batch whose engine's log-probs are the model's, but for a few tokens."""
    batch = random_batch(LENGTHS)
    own = TokenLogprobs(tiny())(batch)[0].detach()
    far = torch.arange(batch.num_tokens) % 4 == 0
    batch.rollout_logprobs = torch.where(batch.mask, own - torch.where(far, 2.0, 0.0), 0.0)
    return batch, own * batch.mask, far & batch.mask


@pytest.mark.prevents("rejected tokens still dilute the loss")
@pytest.mark.parametrize("mode", [*MODES, "seq-mean-token-sum-norm"])
@pytest.mark.parametrize("bypass", [False, True])
def test_a_rejected_token_is_as_one_that_the_model_never_made(bypass, mode):
    batch, own, far = drawn_off_policy()
    correction = RolloutCorrection(bypass, rollout_is=None, rollout_rs="token", rollout_rs_threshold=1.5)
    without = replace(batch, mask=batch.mask & ~far, advantages=batch.advantages * ~far)
    settings = {"loss_agg_mode": mode, "loss_scale_factor": 7, "ppo_micro_batch_size_per_gpu": 2}
    expected, _ = gradients(RolloutCorrection(rollout_is=None), without, **settings)
    if bypass:
        batch.old_logprobs = own  # the ratio that is left is 1
    else:
        batch.old_logprobs = own
        advantages = ComputeAdvantages(Algorithm(adv_estimator="none", rollout_correction=correction), seed=0)
        batch.rewards = batch.advantages
        advantages.estimate(batch)
    found, metrics = gradients(correction, batch, **settings)
    assert_same(found, expected)
    assert metrics["rollout_is/rejected"] == pytest.approx(float(far.sum() / (far.sum() + without.mask.sum())))
    assert metrics["rollout_gap/max"] == pytest.approx(2.0, abs=1e-4)  # what is rejected is measured all the same


STALE = {  # what is removed -> the settings; a token of four has a ratio of exp(2)
    "far": {"rollout_is": None, "rollout_rs": "token", "rollout_rs_threshold": 1.5},
    "far ": {"rollout_is": None, "rollout_rs": "token_k3", "rollout_rs_threshold": 1.0},
    " far": {"rollout_is": "token", "rollout_is_mode": "mask", "rollout_is_threshold": 2.0},
    "far, normalised": {"rollout_is_mode": "mask", "rollout_is_batch_normalize": True},
    "sequences": {"rollout_is": None, "rollout_rs": "sequence", "rollout_rs_threshold": 1.5},
    "sequences ": {"rollout_is": None, "rollout_rs": "geometric", "rollout_rs_threshold": 1.01},
    " sequences": {"rollout_is": "sequence", "rollout_is_mode": "mask", "rollout_is_threshold": 2.0},
    "all, veto": {"rollout_is": None, "rollout_token_veto_threshold": 10.0},
}


@pytest.mark.parametrize("removed", STALE)
def test_what_a_mask_removes_of_older_weights_is_counted(removed):
    batch, own, far = drawn_off_policy()
    batch.stale, batch.old_logprobs, batch.rewards = far, own, batch.advantages
    correction = RolloutCorrection(**STALE[removed])
    advantages = ComputeAdvantages(Algorithm(adv_estimator="none", rollout_correction=correction), seed=0)
    owner, n = sequence_of(batch.cu_seqlens), batch.num_sequences
    with_far = batch.mask & (sum_by(far.long(), owner, n) > 0)[owner]
    gone = {"far": far, "sequences": with_far}.get(removed.strip().partition(",")[0], batch.mask)
    share = float(gone.sum() / batch.mask.sum())
    advantages.estimate(batch)
    found, metrics = gradients(correction, batch)
    name = "rollout_is/rejected" if correction.rollout_is is None else "rollout_is/capped"
    assert metrics[name] == pytest.approx(share)
    assert metrics.get("staleness/gap_mean", 2.0) == pytest.approx(2.0, abs=1e-4)
    assert metrics.get("rollout_gap/max", 0.0) < 1e-4  # the engine computes what the trainer computes
    assert any(bool(g.any()) for g in found.values()) is (share < 1)


def test_rejection_asks_for_log_probs_from_before_the_step():
    for correction, once in (
        (RolloutCorrection(), True),
        (RolloutCorrection(rollout_rs="token_k3", rollout_rs_threshold=0.1), False),
        (RolloutCorrection(rollout_token_veto_threshold=1e-4), False),
        (RolloutCorrection(rollout_is_batch_normalize=True), False),
    ):
        actor = PolicyActor(
            tiny(), actor=Actor(ppo_mini_batch_size=99), temperature=1.0, device=CPU, total_steps=1,
            rollout_correction=correction,
        )  # fmt: skip
        assert actor.single_step(2) is once


def test_normalised_weights_have_a_mean_of_one_over_the_whole_batch():
    batch, own, _ = drawn_off_policy()
    batch.old_logprobs = own
    correction = RolloutCorrection(rollout_is_batch_normalize=True, rollout_is_threshold=3.0)
    ComputeAdvantages(Algorithm(rollout_correction=correction), seed=0).estimate(batch)
    assert batch.importance[batch.mask].mean().item() == pytest.approx(1.0)
    assert batch.importance[batch.mask].max() > 1.5
    ComputeAdvantages(Algorithm(rollout_correction=correction), seed=0, corrects=False).estimate(
        other := random_batch(LENGTHS)
    )
    assert other.importance is None


def test_rejecting_every_token_changes_no_weight_and_is_reported():
    batch, own, _ = drawn_off_policy()
    batch.old_logprobs = own + 5.0 * batch.mask
    correction = RolloutCorrection(rollout_is=None, rollout_rs="geometric", rollout_rs_threshold=1.01)
    ComputeAdvantages(Algorithm(rollout_correction=correction), seed=0).estimate(batch)
    found, metrics = gradients(correction, batch)
    assert not found
    assert metrics["rollout_is/rejected"] == 1.0


def test_figures_of_a_report_without_rejection_have_no_share():
    batch, own, _ = drawn_off_policy()
    batch.old_logprobs = own
    assert (
        "rollout_is/rejected"
        not in PolicyReport(batch, SimpleNamespace(lr=0.1, ranks=ALONE, scale=LossScale(None))).metrics()
    )
