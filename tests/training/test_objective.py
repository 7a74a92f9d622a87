"""Every policy loss inside the update: the split into micro-batches changes nothing, each key does."""

from dataclasses import replace

import pytest
import torch

from agentrl.algorithms import POLICY_LOSSES
from agentrl.config.schema import Actor, PolicyLoss
from agentrl.core.errors import UserError
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.update.actor import loss_of
from tests.training.test_actor import LENGTHS, actor_of, assert_same, gradient_of
from tests.training.tiny import random_batch, tiny


def off_policy():
    module = tiny()
    batch = random_batch(LENGTHS)
    noise = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(3)) * 0.3
    return module, replace(batch, old_logprobs=(TokenLogprobs(module)(batch)[0].detach() + noise) * batch.mask)


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
def test_micro_batches_do_not_change_the_gradient(name):
    module, batch = off_policy()
    settings = {"policy_loss": PolicyLoss(name, {"clip_cov_ratio": 0.3, "clip_cov_lb": 0.1, "kl_cov_ratio": 0.3})}
    whole = gradient_of(module, batch, **settings)
    assert_same(gradient_of(module, batch, ppo_micro_batch_size_per_gpu=1, **settings), whole)
    assert any(gradient.abs().max() > 0 for gradient in whole.values())


def test_a_penalty_moves_sequences_without_advantage():
    module, batch = off_policy()
    bounds = batch.cu_seqlens.tolist()
    batch.advantages[bounds[2] : bounds[5]] = 0.0
    settings = {"policy_loss": PolicyLoss("kl_cov", {"kl_cov_ratio": 0.9})}
    mine = gradient_of(module, batch, **settings)
    # with a KL weight of 0 every sequence takes the long way
    everything = replace(batch, ref_logprobs=torch.zeros(batch.num_tokens))
    assert_same(mine, gradient_of(module, everything, use_kl_loss=True, kl_loss_coef=0.0, **settings))


KEYS = [
    ("clip_cov", "clip_cov_ratio", 0.9, 0.3),
    ("clip_cov", "clip_cov_lb", 0.5, 0.1),
    ("clip_cov", "clip_cov_ub", 0.2, 5.0),
    ("kl_cov", "kl_cov_ratio", 0.9, 0.3),
    ("kl_cov", "ppo_kl_coef", 9.0, 0.1),
    ("sapo", "tau_pos", 5.0, 1.0),
    ("sapo", "tau_neg", 5.0, 1.0),
]


@pytest.mark.parametrize(("name", "key", "value", "other"), KEYS, ids=[key for _, key, _, _ in KEYS])
def test_every_key_changes_the_gradient(name, key, value, other):
    module, batch = off_policy()
    base = {"clip_cov_ratio": 0.3, "clip_cov_lb": 0.1, "kl_cov_ratio": 0.3}
    one, two = (
        gradient_of(module, batch, policy_loss=PolicyLoss(name, base | {key: chosen})) for chosen in (value, other)
    )
    assert any((one[name] - two[name]).abs().max() > 1e-4 * two[name].abs().max() for name in one)


def test_losses_that_choose_tokens_ask_for_old_logprobs():
    batch = random_batch(LENGTHS)
    assert actor_of(tiny(), policy_loss=PolicyLoss("gspo")).single_step(2)
    actor = actor_of(tiny(), policy_loss=PolicyLoss("kl_cov"))
    assert not actor.single_step(2)
    assert actor.update(batch)["actor/optimizer_steps"] == 1  # computed where they are missing


def test_gspo_counts_every_trajectory_the_same_unless_a_mean_is_set():
    module, batch = off_policy()
    by_default = gradient_of(module, batch, policy_loss=PolicyLoss("gspo"))
    assert_same(
        by_default, gradient_of(module, batch, policy_loss=PolicyLoss("gspo"), loss_agg_mode="seq-mean-token-mean")
    )
    by_token = gradient_of(module, batch, policy_loss=PolicyLoss("gspo"), loss_agg_mode="token-mean")
    assert any((by_token[name] - by_default[name]).abs().max() > 1e-3 for name in by_token)
    for name in ("geo_mean", "sapo"):  # defined as means over sequences, in verl too
        fixed = gradient_of(module, batch, policy_loss=PolicyLoss(name), loss_agg_mode="token-mean")
        assert_same(fixed, gradient_of(module, batch, policy_loss=PolicyLoss(name)))


def test_clip_ranges_reach_the_loss():
    options = loss_of(Actor(clip_ratio=0.1, clip_ratio_high=0.4)).options
    assert (options["low"], options["high"], options["c"]) == (0.1, 0.4, 3.0)
    with pytest.raises(UserError, match="loss_mode=best: choose vanilla"):
        loss_of(Actor(policy_loss=PolicyLoss("best")))
