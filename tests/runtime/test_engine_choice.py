"""Which engine a run gets, and what does not fit together."""

import pytest
import torch

from agentrl.config.schema import Rollout
from agentrl.errors import UserError
from agentrl.runtime.engines import check_addresses, engine_name

URL = "http://127.0.0.1:30000"


@pytest.mark.parametrize(
    ("changes", "device", "name"),
    [
        ({}, "cpu", "hf"),
        ({"base_url": URL}, "cpu", "sglang"),
        ({"base_url": URL, "name": "vllm"}, "cpu", "vllm"),
        ({"engine_python": "python"}, "cuda", "sglang"),
        ({"engine_python": "python"}, "cpu", "hf"),
    ],
)
def test_auto_takes_what_is_there(changes: dict[str, str], device: str, name: str) -> None:
    assert engine_name(Rollout(**changes), torch.device(device)) == name


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"name": "hf", "base_url": URL}, "rollout.base_url"),
        ({"name": "hf", "router_url": URL}, "rollout.router_url"),
        ({"name": "vllm", "base_url": URL, "router_url": URL}, "rollout.router_url"),
        ({"router_url": URL}, "rollout.router_url"),
    ],
)
def test_addresses_that_nobody_would_use_are_named(changes: dict[str, str], culprit: str) -> None:
    rollout = Rollout(**changes)
    with pytest.raises(UserError, match=culprit):
        check_addresses(rollout, engine_name(rollout, torch.device("cpu")))
