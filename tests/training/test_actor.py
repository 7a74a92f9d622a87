"""The policy update: the same gradient for every split, correct metrics, exact resume."""

import copy
from dataclasses import replace

import pytest
import torch

from agentrl.algorithms import ADVANTAGES
from agentrl.algorithms.aggregate import LOSS_AGG_MODES
from agentrl.config.schema import Actor, Optim
from agentrl.core.errors import UserError
from agentrl.training import PolicyActor
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.model.head.logprobs import TokenLogprobs
from tests.training.saved import save_checkpoint
from tests.training.tiny import CPU, lora, random_batch, tiny

LENGTHS = [7, 1, 12, 4, 9, 6, 3, 8]


def actor_of(module, *, temperature=1.0, total_steps=10, max_response_length=20, **settings):
    settings = {"ppo_mini_batch_size": 99, "optim": Optim(lr=1e-3)} | settings
    return PolicyActor(
        module,
        actor=Actor(**settings),
        temperature=temperature,
        device=CPU,
        total_steps=total_steps,
        max_response_length=max_response_length,
    )


def gradient_of(module, batch, **settings):
    """The gradient that an update hands to the optimizer, by parameter."""
    actor = actor_of(module, grad_clip=0.0, **settings)
    caught = {}

    def keep_and_clear():
        caught.update({n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None})
        module.zero_grad()
        return 1.0

    actor.optimizer.step = keep_and_clear
    actor.update(batch)
    return caught


def assert_same(one, other, tolerance=1e-5):
    assert one.keys() == other.keys()
    for name in one:
        scale = max(other[name].abs().max().item(), 1e-6)
        assert (one[name] - other[name]).abs().max().item() <= tolerance * scale, name


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
def test_micro_batches_do_not_change_the_gradient(mode):
    batch, module = random_batch(LENGTHS), tiny()
    whole = gradient_of(module, batch, loss_agg_mode=mode)
    for limits in ({"ppo_max_token_len_per_gpu": 20}, {"ppo_micro_batch_size_per_gpu": 1}):
        assert_same(gradient_of(module, batch, loss_agg_mode=mode, **limits), whole)


def test_the_sequences_of_a_split_trajectory_count_as_one():
    batch, module = random_batch(LENGTHS), tiny()
    apart = gradient_of(module, batch, loss_agg_mode="seq-mean-token-sum")
    batch.trajectory = torch.arange(8) // 2  # half as many trajectories: each token weighs twice as much
    together = gradient_of(module, batch, loss_agg_mode="seq-mean-token-sum")
    assert_same(together, {name: 2 * gradient for name, gradient in apart.items()})


def test_the_gradient_is_that_of_the_loss_written_out():
    batch, module = random_batch(LENGTHS), tiny()
    old = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(3)) * 0.2
    old = (TokenLogprobs(module)(batch)[0].detach() + old) * batch.mask
    ref = TokenLogprobs(tiny(seed=5))(batch)[0].detach()
    settings = {"use_kl_loss": True, "kl_loss_coef": 0.3, "kl_loss_type": "low_var_kl", "entropy_coeff": 0.2}
    mine = gradient_of(module, replace(batch, old_logprobs=old, ref_logprobs=ref), **settings)

    total, tokens = torch.tensor(0.0), int(batch.mask.sum())
    for span in torch.arange(batch.num_tokens).split(batch.lengths):
        logits = module(input_ids=batch.ids[span][None], use_cache=False).logits[0].log_softmax(-1)
        for place, t in enumerate(span.tolist()):
            if batch.mask[t]:
                logprob = logits[place - 1, batch.ids[t]]
                ratio, advantage = (logprob - old[t]).exp(), batch.advantages[t]
                loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
                if advantage < 0:
                    loss = torch.min(loss, -advantage * 3.0)
                d = logprob - ref[t]
                entropy = -(logits[place - 1].exp() * logits[place - 1]).sum()
                kl = ((-d).exp() + d - 1).clamp(max=10)
                total = total + (loss + 0.3 * kl - 0.2 * entropy) / tokens
    module.zero_grad()
    total.backward()
    assert_same(mine, {n: p.grad for n, p in module.named_parameters()}, tolerance=1e-4)


def test_one_step_needs_no_old_logprobs():
    batch, module = random_batch(LENGTHS), tiny()
    actor = actor_of(module)
    assert actor.single_step(4)
    assert not actor_of(module, ppo_mini_batch_size=2).single_step(4)
    assert not actor_of(module, ppo_epochs=2).single_step(4)
    with_old = gradient_of(module, replace(batch, old_logprobs=actor.logprobs(batch)[0]))
    assert_same(gradient_of(module, batch), with_old)


def test_missing_old_logprobs_are_those_from_before_the_first_step():
    batch = random_batch(LENGTHS)
    module, other = tiny(), tiny()
    settings = {"ppo_mini_batch_size": 1, "ppo_epochs": 2, "optim": Optim(lr=1e-2)}
    actor = actor_of(module, **settings)
    given = actor_of(other, **settings)
    metrics = actor.update(batch)
    assert metrics["actor/optimizer_steps"] == 8  # 4 prompts, 2 epochs
    assert metrics["actor/ppo_kl"] != 0
    assert metrics == given.update(replace(batch, old_logprobs=given.logprobs(batch)[0]))


def test_sequences_without_advantage_cost_no_backward_pass_and_change_nothing():
    batch, module = random_batch(LENGTHS), tiny()
    bounds = batch.cu_seqlens.tolist()
    batch.advantages[bounds[2] : bounds[5]] = 0.0
    mine = gradient_of(module, batch)
    # with a KL weight of 0 every sequence takes the long way
    ref = torch.zeros(batch.num_tokens)
    assert_same(mine, gradient_of(module, replace(batch, ref_logprobs=ref), use_kl_loss=True, kl_loss_coef=0.0))
    backward_passes = 0
    actor = actor_of(module, ppo_micro_batch_size_per_gpu=1)
    loss = actor.loss

    def counting(*args):
        nonlocal backward_passes
        out = loss(*args)
        backward_passes += out.requires_grad
        return out

    actor.loss = counting
    metrics = actor.update(batch)
    assert backward_passes == 5
    assert metrics["batch/sequences"] == 8
    assert metrics["actor/entropy"] > 0


def test_mini_batches_without_gradient_are_no_optimizer_steps():
    batch, module = random_batch([6, 6, 6, 6]), tiny()
    alone = actor_of(copy.deepcopy(module)).update(batch.select([0, 1]))
    batch.advantages[batch.tokens_of([2, 3])] = 0.0
    metrics = actor_of(module, ppo_mini_batch_size=1).update(batch)
    assert metrics["actor/optimizer_steps"] == 1
    assert metrics["actor/grad_norm"] == pytest.approx(alone["actor/grad_norm"])


def test_a_batch_without_gradient_leaves_the_weights_unchanged():
    batch, module = random_batch(LENGTHS), tiny()
    before = copy.deepcopy(module.state_dict())
    actor = actor_of(module)
    metrics = actor.update(replace(batch, advantages=torch.zeros(batch.num_tokens)))
    empty = actor.update(batch.select([]))
    assert all(torch.equal(before[n], p) for n, p in module.state_dict().items())
    assert metrics["actor/grad_norm"] == 0.0
    assert "actor/entropy" not in empty
    assert actor.optimizer.schedule_step == 2


def test_it_learns_what_is_rewarded():
    """Sampling from the policy itself, the share of even tokens rises from a half to nearly all."""
    module = tiny()
    with torch.no_grad():  # a flat start, so that there is something to explore
        module.lm_head.weight.mul_(0.1)
    actor = actor_of(module, optim=Optim(lr=1e-2))
    batch = random_batch([10] * 16, per_group=16)
    share = []
    for step in range(25):
        for t in range(1, batch.lengths[0]):
            rows = torch.tensor([a + t for a in batch.cu_seqlens.tolist()[:-1]])
            if batch.mask[rows[0]]:
                short = torch.stack([batch.ids[r - t : r] for r in rows.tolist()])
                probs = module(input_ids=short).logits[:, -1].softmax(-1)
                draws = torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(step * 100 + t))
                batch.ids[rows] = draws.squeeze(-1)
        even = (batch.ids % 2 == 0).float() * batch.mask
        share.append((even.sum() / batch.mask.sum()).item())
        columns = even, batch.mask, batch.cu_seqlens, batch.trajectory, batch.group
        batch.advantages = ADVANTAGES["reinforce_plus_plus"](*columns, gamma=0.0)
        actor.update(batch)
    assert share[0] < 0.65
    assert share[-1] > 0.85


def test_logprobs_do_not_depend_on_the_micro_batches():
    batch, module = random_batch(LENGTHS), tiny()
    whole = actor_of(module).logprobs(batch)
    parts = actor_of(module, ppo_max_token_len_per_gpu=20).logprobs(batch)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert not whole[0][~batch.mask].any()


@pytest.mark.prevents("the gap between engine and trainer grows unseen")
@pytest.mark.prevents("multi-turn training collapses: mismatched tokens, tiny probabilities, truncated answers")
def test_the_rollout_gap_is_measured():
    batch, module = random_batch(LENGTHS), tiny()
    actor = actor_of(module)
    noise = torch.linspace(-0.1, 0.3, batch.num_tokens)
    batch.rollout_logprobs = (actor.logprobs(batch)[0] - noise) * batch.mask
    metrics = actor.update(batch)
    gap = noise[batch.mask]
    assert metrics["rollout_gap/mean"] == pytest.approx(gap.abs().mean().item(), rel=1e-3)
    assert metrics["rollout_gap/max"] == pytest.approx(gap.abs().max().item(), rel=1e-3)
    assert metrics["rollout_gap/k3"] == pytest.approx((gap.exp() - gap - 1).mean().item(), rel=1e-2)
    assert metrics["rollout_gap/p99"] <= metrics["rollout_gap/max"]
    assert metrics["batch/mask_share"] == pytest.approx(batch.mask.float().mean().item())


def test_the_temperature_reaches_the_logprobs():
    batch, module = random_batch(LENGTHS), tiny()
    torch.testing.assert_close(
        actor_of(module, temperature=0.5).logprobs(batch), TokenLogprobs(module, temperature=0.5)(batch)
    )


def test_a_gradient_that_is_not_finite_is_skipped_and_counted():
    batch, module = random_batch(LENGTHS), tiny()
    actor = actor_of(module)
    before = copy.deepcopy(module.state_dict())
    poisoned = batch.advantages.clone()
    poisoned[batch.mask.nonzero()[0]] = float("inf")
    metrics = actor.update(replace(batch, advantages=poisoned))
    assert metrics["actor/skipped_steps"] == 1
    assert all(torch.equal(before[n], p) for n, p in module.state_dict().items())
    assert actor.optimizer.skipped == 1
    assert actor.update(batch)["actor/skipped_steps"] == 0
    assert not all(torch.equal(before[n], p) for n, p in module.state_dict().items())


@pytest.mark.parametrize("adapter", [False, True])
def test_three_and_three_steps_are_six_bit_for_bit(adapter, tmp_path):
    settings = {
        "ppo_mini_batch_size": 2,
        "shuffle": True,
        "optim": Optim(lr=1e-2, lr_scheduler_type="cosine", lr_warmup_steps=2),
        "ppo_max_token_len_per_gpu": 40,
    }

    def fresh(seed):
        return actor_of(lora(tiny(seed=seed)) if adapter else tiny(seed=seed), total_steps=6, **settings)

    batches = [random_batch(LENGTHS, seed=i) for i in range(6)]
    unbroken = fresh(0)
    unbroken_metrics = [unbroken.update(b) for b in batches]
    torch.manual_seed(7)
    drawn = torch.rand(3)

    first = fresh(0)
    metrics = [first.update(b) for b in batches[:3]]
    torch.manual_seed(7)
    saved = save_checkpoint(tmp_path, 3, {"policy": first.state_dict()})
    second = fresh(0 if adapter else 3)  # full training restores every weight, whatever was there
    torch.rand(5)
    second.load_state_dict(checkpoints.load(saved)[1]["policy"])
    assert torch.equal(torch.rand(3), drawn)
    metrics += [second.update(b) for b in batches[3:]]
    assert metrics == unbroken_metrics
    theirs = dict(unbroken.model.module.named_parameters())
    assert all(torch.equal(p, theirs[n]) for n, p in second.model.module.named_parameters())
    if adapter:
        assert all("lora_" in name for name in first.state_dict()["parameters"])


def test_loading_writes_in_place_and_refuses_another_model():
    actor = actor_of(tiny())
    state = actor_of(tiny(seed=3)).state_dict()
    pointers = [p.data_ptr() for p in actor.model.module.parameters()]
    actor.load_state_dict(state)
    assert pointers == [p.data_ptr() for p in actor.model.module.parameters()]
    with pytest.raises(UserError, match="another model"):
        actor_of(tiny(intermediate_size=48)).load_state_dict(state)


def test_the_norm_needs_a_response_length():
    with pytest.raises(UserError, match="max_response_length"):
        actor_of(tiny(), loss_agg_mode="seq-mean-token-sum-norm", max_response_length=None)


def test_the_divisor_may_be_given() -> None:
    by_length = actor_of(tiny(), loss_agg_mode="seq-mean-token-sum-norm")
    by_factor = actor_of(tiny(), loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=40)
    batch = random_batch([4, 6])
    assert torch.allclose(by_length.loss_weights(batch), 2 * by_factor.loss_weights(batch))
