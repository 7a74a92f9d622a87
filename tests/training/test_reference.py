"""The reference keeps the initial policy while the policy trains."""

import copy

import pytest
import torch

from agentrl.config.schema import Actor, Config, Optim, Ref
from agentrl.training import PolicyActor
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.roles.frozen import Reference
from agentrl.training.roles.making import Roles
from agentrl.training.update.micro_batches import MicroBatching
from tests.training.tiny import CPU, lora, random_batch, tiny

LENGTHS = [7, 1, 12, 4, 9, 6, 3, 8]


@pytest.mark.parametrize("adapter", [False, True])
def test_the_reference_keeps_the_initial_policy(adapter: bool) -> None:
    batch = random_batch(LENGTHS)
    module = lora(tiny(), std=0.0) if adapter else tiny()
    actor = PolicyActor(module, actor=Actor(optim=Optim(lr=1e-2)), temperature=0.7, device=CPU, total_steps=9)
    held = module if adapter else copy.deepcopy(module)
    reference = Reference(held, temperature=0.7, micro_batching=MicroBatching(max_tokens=20), device=CPU)
    start = actor.logprobs(batch)[0]
    torch.testing.assert_close(reference.logprobs(batch), start, atol=1e-5, rtol=1e-5)
    actor.update(batch)
    torch.testing.assert_close(reference.logprobs(batch), start, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(actor.logprobs(batch)[0], start)


def test_an_offloaded_reference_gives_the_same_and_is_on_the_cpu() -> None:
    batch = random_batch(LENGTHS)
    there, away = (
        Reference(tiny(), temperature=1.0, micro_batching=MicroBatching(), device=CPU, offload=o) for o in (False, True)
    )
    assert torch.equal(there.logprobs(batch), away.logprobs(batch))
    assert all(parameter.device == CPU for parameter in away.model.module.parameters())


def test_reference_micro_batches_are_its_own_or_the_policys() -> None:
    actor = Actor(ppo_max_token_len_per_gpu=50, ppo_micro_batch_size_per_gpu=3)
    scoring = Roles(Config(actor=actor), CPU, Ranks())._scoring
    assert scoring(Ref()) == MicroBatching(50, 3)
    assert scoring(Ref(log_prob_max_token_len_per_gpu=9, log_prob_micro_batch_size_per_gpu=2)) == MicroBatching(9, 2)
    assert scoring(Ref(log_prob_use_dynamic_bsz=False)) == MicroBatching(None, 3)
