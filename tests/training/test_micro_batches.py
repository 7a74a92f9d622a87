"""The size of a forward pass: as set, or what suits the device."""

from typing import Any

import pytest
import torch

from agentrl.config.schema import Actor, Critic, Ref
from agentrl.training.actor import actor_cut
from agentrl.training.critic import critic_cut
from agentrl.training.micro_batches import Cut, cut_like, pass_tokens
from agentrl.training.reference import ref_cut
from agentrl.training.sft import run as sft

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(("device", "tokens"), [(CPU, 2048), (GPU, 16384)])
def test_with_nothing_set_the_device_decides(device: torch.device, tokens: int) -> None:
    cuts = [actor_cut(Actor(), device), critic_cut(Critic(), Actor(), device), ref_cut(Ref(), Actor(), device)]
    assert cuts == [Cut(tokens)] * 3
    assert cut_like(Actor(), device, None, None, None) == Cut(tokens)


@pytest.mark.parametrize("device", [CPU, GPU])
def test_what_is_set_stays(device: torch.device) -> None:
    actor: Any = Actor(ppo_max_token_len_per_gpu=50)
    assert actor_cut(actor, device) == critic_cut(Critic(), actor, device) == ref_cut(Ref(), actor, device) == Cut(50)
    assert cut_like(actor, device, None, 9, None) == Cut(9)
    assert actor_cut(Actor(use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=3), device) == Cut(None, 3)
    assert pass_tokens(7, device) == 7


def test_supervised_passes_follow_the_device_too() -> None:
    assert sft.PASS_TOKENS == {"cpu": 2048, "cuda": 4096}
