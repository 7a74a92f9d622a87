"""Packed attention and the update on a GPU: the variable-length kernel against one sequence at a time."""

import pytest
import torch

from agentrl.config.schema import Actor, Optim
from agentrl.training import PolicyActor
from agentrl.training.model.attention.varlen import varlen_fits
from agentrl.training.model.head.logprobs import TokenLogprobs
from tests.training.tiny import random_batch, tiny

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
CUDA = torch.device("cuda")
LENGTHS = [30, 1, 12, 60, 9]


def one_by_one(module, batch):
    """Log-probs with every sequence in a batch of its own, in float32."""
    score = TokenLogprobs(module)
    return torch.cat([score(batch.select([i]))[0] for i in range(batch.num_sequences)])


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_equals_one_by_one(kind, dtype):
    batch = random_batch(LENGTHS).to(CUDA)
    exact = one_by_one(tiny(kind).to(CUDA), batch)
    module = tiny(kind).to(CUDA, dtype)
    assert varlen_fits(torch.zeros(1, 4, 8, 16, device=CUDA, dtype=dtype)) == (dtype == torch.bfloat16)
    packed = TokenLogprobs(module)(batch)[0]
    alone = one_by_one(module, batch)
    tolerance = 2e-4 if dtype == torch.float32 else 0.15
    assert (packed - exact).abs()[batch.mask].mean() <= tolerance
    assert (packed - exact).abs().mean() <= 1.5 * (alone - exact).abs().mean() + 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_packed_sequences(dtype):
    batch = random_batch(LENGTHS).to(CUDA)
    weights = torch.linspace(-1, 1, batch.num_tokens, device=CUDA)

    def gradient(module, logprobs):
        module.zero_grad()
        (weights * logprobs).sum().backward()
        return torch.cat([p.grad.float().flatten() for p in module.parameters()])

    reference = tiny("llama").to(CUDA)
    exact = gradient(reference, one_by_one(reference, batch))
    module = tiny("llama").to(CUDA, dtype)
    got = gradient(module, TokenLogprobs(module)(batch)[0])
    assert torch.nn.functional.cosine_similarity(got, exact, dim=0) > (0.99999 if dtype == torch.float32 else 0.98)


def test_an_update_lowers_the_loss_it_is_for():
    batch = random_batch(LENGTHS)
    module = tiny("llama").to(CUDA)
    actor = PolicyActor(module, actor=Actor(optim=Optim(lr=1e-3)), temperature=1.0, device=CUDA, total_steps=5)
    before = actor.logprobs(batch)[0]
    actor.update(batch)
    gain = ((actor.logprobs(batch)[0] - before) * batch.advantages.to(CUDA)).sum()
    assert gain > 0


def test_an_update_that_began_early_is_that_of_the_whole_batch():
    def updated(*parts):
        batch, module = random_batch(LENGTHS), tiny("llama").to(CUDA)
        batch.stale = batch.mask & (torch.arange(batch.num_tokens) % 3 == 0)
        settings = Actor(ppo_mini_batch_size=99, optim=Optim(lr=1e-3))
        actor = PolicyActor(module, actor=settings, temperature=1.0, device=CUDA, total_steps=5)
        for rows in parts:
            part = batch.select(rows)
            part.trajectory = part.trajectory.unique(return_inverse=True)[1]
            part.group = part.group.unique(return_inverse=True)[1]
            actor.early.accumulate(part)
        assert (actor.early.pending is not None) == bool(parts)
        return actor.update(batch)

    whole, early = updated(), updated([3], [0, 2])
    assert early["actor/grad_norm"] == pytest.approx(whole["actor/grad_norm"], rel=1e-4)
    assert early["actor/pg_loss"] == pytest.approx(whole["actor/pg_loss"], rel=1e-4, abs=1e-6)
