"""The KL over the whole vocabulary: against the plain way, in the loss, in the reward."""

from dataclasses import replace

import pytest
import torch

from agentrl.algorithms.kl import kl_of_logits
from agentrl.config.schema import Actor, Algorithm, Optim
from agentrl.training import ComputeAdvantages, PolicyActor
from agentrl.training.model.head import chunked
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.roles.frozen import Reference
from agentrl.training.update.micro_batches import MicroBatching
from tests.training.test_actor import assert_same
from tests.training.tiny import CPU, lora, random_batch, smoothed, tiny

LENGTHS = [7, 1, 12, 4, 9]
TEMPERATURE = 0.7


def plain(policy, reference, batch):
    """The KL [T] of tempered distributions, by the logits of one sequence after another, all of both at once."""
    columns = []
    for ids in batch.ids.split(batch.lengths):
        logp, logq = (
            (m(input_ids=ids[None], use_cache=False).logits[0] / TEMPERATURE).log_softmax(-1)
            for m in (policy, reference)
        )
        columns += [torch.zeros(1), (logp.exp() * (logp - logq.detach())).sum(-1)[:-1]]
    return torch.cat(columns) * batch.mask


def gradients(module, loss):
    module.zero_grad()
    loss.backward()
    found = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad()
    return found


@pytest.mark.parametrize("kind", ["llama", "phi", "granite"])  # a plain head, one with a bias, one that is not linear
def test_values_and_gradients_equal_the_plain_way(kind, monkeypatch):
    monkeypatch.setitem(chunked.CHUNK_LOGITS, "cpu", 97 * 40 * 8)  # several chunks
    fields = {"logits_scaling": 8.0} if kind == "granite" else {}
    policy, other, batch = tiny(kind, **fields), tiny(kind, seed=3, **fields), random_batch(LENGTHS)
    score = TokenLogprobs(policy, temperature=TEMPERATURE)
    theirs = TokenLogprobs(other, temperature=TEMPERATURE).logits(batch)

    def compare(logits, tokens):
        return kl_of_logits(logits, theirs(tokens))[None]

    logprobs, entropy, kl = score(batch, compare=compare)
    expected = plain(policy, other, batch)
    assert expected.max() > 0.1
    torch.testing.assert_close(kl, expected, atol=2e-5, rtol=1e-5)
    alone = score(batch)
    torch.testing.assert_close((logprobs, entropy), alone)
    weights = torch.linspace(-1, 1, batch.num_tokens)
    mine = gradients(policy, (weights * (kl + logprobs) - 0.3 * entropy).sum())
    assert_same(mine, gradients(policy, (weights * (expected + alone[0]) - 0.3 * alone[1]).sum()), tolerance=1e-4)
    only = gradients(policy, (weights * score(batch, compare=compare)[2]).sum())
    assert_same(only, gradients(policy, (weights * plain(policy, other, batch)).sum()), tolerance=1e-4)
    assert all(p.grad is None for p in other.parameters())


@pytest.mark.parametrize("adapter", [False, True])
def test_the_kl_loss_keeps_the_policy_near_the_reference(adapter):
    module, start = (lora(tiny(), std=0.2), tiny()) if adapter else (tiny(), tiny(seed=3))
    batch = random_batch(LENGTHS)
    batch.advantages = torch.zeros(batch.num_tokens)  # nothing but the KL moves it
    held = module if adapter else start
    actor = PolicyActor(
        module,
        actor=Actor(use_kl_loss=True, kl_loss_type="full", kl_loss_coef=1.0, grad_clip=0.0, optim=Optim(lr=3e-3)),
        temperature=TEMPERATURE,
        device=CPU,
        total_steps=9,
        reference=Reference(
            held, temperature=TEMPERATURE, micro_batching=MicroBatching(), device=CPU, offload=not adapter
        ),
    )
    caught = {}
    step = actor.optimizer.step

    def spied():
        caught.update({n: p.grad.clone() for n, p in module.named_parameters() if p.requires_grad})
        return step()

    actor.optimizer.step = spied
    written_out = plain(module, start, batch).sum() / batch.mask.sum()
    expected = gradients(module, written_out)
    metrics = actor.update(batch)
    assert metrics["actor/kl_loss"] == pytest.approx(written_out.item(), rel=1e-4)
    assert_same(caught, expected, tolerance=1e-4)
    for _ in range(5):
        metrics = actor.update(batch)
    assert metrics["actor/kl_loss"] < 0.8 * written_out.item()


@pytest.mark.parametrize("limits", [{"ppo_max_token_len_per_gpu": 20}, {"ppo_micro_batch_size_per_gpu": 1}])
def test_any_split_into_micro_batches_gives_the_same_update(limits):
    batch = random_batch(LENGTHS)

    def after_one_step(**settings):
        module, settings = tiny(), {"use_kl_loss": True, "kl_loss_type": "full", "kl_loss_coef": 1.0} | settings
        held = Reference(tiny(seed=3), temperature=1.0, micro_batching=MicroBatching(), device=CPU)
        actor = Actor(optim=Optim(lr=1e-2), **settings)
        trainable = PolicyActor(module, actor=actor, temperature=1.0, device=CPU, total_steps=9, reference=held)
        smoothed(trainable).update(batch)
        return dict(module.named_parameters())

    whole, parts = (
        after_one_step(),
        after_one_step(use_dynamic_bsz="ppo_max_token_len_per_gpu" in limits, **limits),
    )
    for name, parameter in whole.items():
        torch.testing.assert_close(parts[name], parameter, atol=1e-5, rtol=0)


def test_in_the_reward_it_is_taken_off_each_token():
    batch = random_batch(LENGTHS)
    policy, start = lora(tiny(), std=0.2), tiny()
    actor = PolicyActor(policy, actor=Actor(), temperature=TEMPERATURE, device=CPU, total_steps=9)
    reference = Reference(policy, temperature=TEMPERATURE, micro_batching=MicroBatching(), device=CPU)
    old, _, kl = actor.logprobs(batch, reference)
    expected = plain(policy, start, batch)
    torch.testing.assert_close(kl, expected.detach(), atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(old, actor.logprobs(batch)[0])
    batch = replace(batch, old_logprobs=old, kl=kl)
    compute_advantages = ComputeAdvantages(
        Algorithm(adv_estimator="none", use_kl_in_reward=True, kl_penalty="full"), seed=0
    )
    metrics = compute_advantages.estimate(batch)
    torch.testing.assert_close(batch.advantages, batch.rewards - metrics["actor/reward_kl_coef"] * kl)
