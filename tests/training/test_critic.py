"""The critic's update: the written-out gradient, correct metrics, exact resume."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForTokenClassification

from agentrl.config.schema import Actor, Critic
from agentrl.config.schema.critic import CriticOptim
from agentrl.training.model.attention.choosing import use_packed_attention
from agentrl.training.update.critic import ValueCritic
from tests.training.test_actor import assert_same
from tests.training.tiny import CPU, random_batch, tiny

LENGTHS = [7, 1, 12, 4, 9, 6, 3, 8]


def value_model(seed: int = 0):
    config = tiny().config
    config.num_labels = 1
    torch.manual_seed(seed)
    module = AutoModelForTokenClassification.from_config(config)
    module.dropout.p = 0.0
    assert use_packed_attention(module)
    return module.eval()


def critic_of(module, *, vf_coef: float = 1.0, actor: Actor | None = None, **settings) -> ValueCritic:
    settings = {"ppo_mini_batch_size": 99, "optim": CriticOptim(lr=1e-3), "grad_clip": 0.0} | settings
    return ValueCritic(
        module, critic=Critic(**settings), actor=actor or Actor(), device=CPU, total_steps=10, vf_coef=vf_coef
    )


def place_rewards(seed: int = 0):
    """A batch with returns, and with old values some of which are far from today's."""
    batch = random_batch(LENGTHS, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    batch.returns = torch.randn(batch.num_tokens, generator=draw) * batch.mask
    batch.values = torch.randn(batch.num_tokens, generator=draw) * batch.mask
    return batch


def gradient_of(module, batch, **settings):
    critic, caught = critic_of(module, **settings), {}

    def keep_and_clear() -> float:
        caught.update({n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None})
        module.zero_grad()
        return 1.0

    critic.optimizer.step = keep_and_clear
    critic.update(batch)
    return caught


def test_the_gradient_is_that_of_the_loss_written_out() -> None:
    batch, module = place_rewards(), value_model()
    mine = gradient_of(module, batch, cliprange_value=0.3, vf_coef=0.7)
    total, tokens = torch.zeros(()), int(batch.mask.sum())
    for span in torch.arange(batch.num_tokens).split(batch.lengths):
        values = module(input_ids=batch.ids[span][None], use_cache=False).logits[0, :, 0]
        for place, t in enumerate(span.tolist()):
            if batch.mask[t]:
                value, old, wanted = values[place - 1], batch.values[t], batch.returns[t]
                held = torch.max(torch.min(value, old + 0.3), old - 0.3)
                total = total + 0.7 * 0.5 * torch.max((value - wanted) ** 2, (held - wanted) ** 2) / tokens
    module.zero_grad()
    total.backward()
    assert_same(mine, {n: p.grad for n, p in module.named_parameters()}, tolerance=1e-4)


def test_micro_batches_do_not_change_the_gradient() -> None:
    batch, module = place_rewards(), value_model()
    whole = gradient_of(module, batch)
    for limits in ({"ppo_max_token_len_per_gpu": 20}, {"ppo_micro_batch_size_per_gpu": 1}):
        assert_same(gradient_of(module, batch, **limits), whole)


def test_the_critic_learns_the_returns() -> None:
    batch = place_rewards()
    batch.returns = batch.mask * (batch.ids % 3).float()
    critic = critic_of(value_model(), cliprange_value=9.0, optim=CriticOptim(lr=1e-2))
    figures = [critic.update(replace(batch, values=None)) for _ in range(30)]
    assert figures[-1]["critic/explained_variance"] > 0.8 > 0.2 > figures[0]["critic/explained_variance"]
    assert figures[-1]["critic/vf_loss"] < 0.1 * figures[0]["critic/vf_loss"]
    assert figures[-1]["critic/values"] == pytest.approx(figures[-1]["critic/returns"], abs=0.2)


def test_explained_variance_is_of_unseen_returns() -> None:
    """Answers to one prompt succeed nine times of ten, to another one time of ten. Of such returns a critic can explain
    0.64, and one that only knows the mean nothing: the figure is of values from before the step.
    """
    critic = critic_of(value_model(), ppo_mini_batch_size=8, optim=CriticOptim(lr=3e-3))
    figures, draw = [], torch.Generator().manual_seed(0)
    for step in range(10):
        batch = random_batch([6] * 64, seed=step)
        easy = torch.rand(64, generator=draw) < 0.5
        batch.ids[batch.cu_seqlens[:-1].long()] = torch.where(easy, 5, 7)
        succeeds = torch.rand(64, generator=draw) < torch.where(easy, 0.9, 0.1)
        batch.returns = batch.mask * succeeds.float().repeat_interleave(torch.tensor(batch.lengths))
        figures.append(critic.update(batch)["critic/explained_variance"])
    assert figures[0] < 0.1
    assert 0.5 < sum(figures[-4:]) / 4 < 0.8


def test_null_critic_settings_are_the_actors() -> None:
    batch = place_rewards()
    actor = Actor(ppo_mini_batch_size=1, ppo_epochs=2)
    assert critic_of(value_model(), actor=actor, ppo_mini_batch_size=None).update(batch)["critic/optimizer_steps"] == 8
    assert critic_of(value_model(), actor=actor).update(batch)["critic/optimizer_steps"] == 2


def test_values_do_not_depend_on_the_micro_batches() -> None:
    batch, module = place_rewards(), value_model()
    whole = critic_of(module).values(batch)
    for limits in ({"ppo_max_token_len_per_gpu": 20}, {"ppo_micro_batch_size_per_gpu": 1}):
        torch.testing.assert_close(critic_of(module, **limits).values(batch), whole, atol=1e-5, rtol=1e-5)
    assert not whole[~batch.mask].any()


def test_two_and_two_steps_are_four() -> None:
    settings = {"actor": Actor(shuffle=True), "ppo_mini_batch_size": 1}
    straight, first = critic_of(value_model(), **settings), critic_of(value_model(), **settings)
    batches = [place_rewards(seed) for seed in range(4)]
    for batch in batches:
        straight.update(batch)
    for batch in batches[:2]:
        first.update(batch)
    again = critic_of(value_model(seed=5), **settings)
    again.load_state_dict(first.state_dict())
    for batch in batches[2:]:
        again.update(batch)
    assert all(map(torch.equal, straight.model.module.parameters(), again.model.module.parameters()))
