"""The size of a forward pass: as set, or what suits the device."""

import pytest
import torch

from agentrl.config.schema import Actor
from agentrl.training.sft import run as sft
from agentrl.training.update.micro_batches import MicroBatching, micro_batch_tokens, micro_batching_of

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(("device", "tokens"), [(CPU, 2048), (GPU, 16384)])
def test_with_nothing_set_the_device_decides(device: torch.device, tokens: int) -> None:
    assert micro_batching_of(Actor(), device) == MicroBatching(tokens)


@pytest.mark.parametrize("device", [CPU, GPU])
def test_set_sizes_are_kept(device: torch.device) -> None:
    assert micro_batching_of(Actor(ppo_max_token_len_per_gpu=50), device) == MicroBatching(50)
    one_by_one = Actor(use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=3)
    assert micro_batching_of(one_by_one, device) == MicroBatching(None, 3)
    assert micro_batch_tokens(7, device) == 7


def test_sft_micro_batches_have_device_defaults() -> None:
    assert sft.MICRO_BATCH_TOKENS == {"cpu": 2048, "cuda": 4096}
