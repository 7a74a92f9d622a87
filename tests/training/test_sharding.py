"""When a sharded model stays whole between the passes of a step."""

from types import SimpleNamespace

import pytest
import torch

from agentrl.config.schema.fsdp import FsdpConfig
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.sharding import reshards_after_forward

MODULE = torch.nn.Linear(1000, 1000, bias=False)  # a million parameters: 2 MB in bfloat16, gradients' sums 4 MB
DTYPES = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("megabytes", "settings", "world", "device", "lets_go"),
    [
        (31, {}, 2, "cuda", False),  # 6 are less than a fifth
        (29, {}, 2, "cuda", True),
        (31, {"reshard_after_forward": True}, 2, "cuda", True),
        (29, {"reshard_after_forward": False}, 2, "cuda", False),
        (31, {"offload_policy": True}, 2, "cuda", True),
        (31, {}, 2, "cpu", True),
        (29, {"reshard_after_forward": True}, 1, "cuda", False),  # nobody else has what it would let go of
    ],
)
def test_units_stay_where_there_is_room(megabytes, settings, world, device, lets_go, monkeypatch) -> None:
    memory = SimpleNamespace(total_memory=megabytes * 1_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: memory)
    found = reshards_after_forward(FsdpConfig(**settings), MODULE, DTYPES, Ranks(world=world), torch.device(device))
    assert found == lets_go


def test_what_does_not_learn_needs_no_room_for_gradients(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=11_000_000))
    frozen = torch.nn.Linear(1000, 1000, bias=False).requires_grad_(False)
    assert not reshards_after_forward(FsdpConfig(), frozen, DTYPES, Ranks(world=2), torch.device("cuda"))
    assert reshards_after_forward(FsdpConfig(), MODULE, DTYPES, Ranks(world=2), torch.device("cuda"))
