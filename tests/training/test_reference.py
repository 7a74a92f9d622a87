"""The reference keeps the initial policy while the policy trains."""

import copy

import pytest
import torch

from agentrl.config.schema import Actor, Optim
from agentrl.training import PolicyActor
from agentrl.training.roles.frozen import Reference
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
