"""Which engine a run gets, and what does not fit together."""

from typing import Any

import pytest

from agentrl.config.schema import Rollout
from agentrl.core.errors import UserError
from agentrl.engines.launching import check_addresses, engine_name, resolve_weight_sync

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
    assert engine_name(Rollout(**changes), device) == name


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"name": "hf", "base_url": URL}, "rollout.base_url"),
        ({"name": "hf", "router_url": URL}, "rollout.router_url"),
        ({"name": "vllm", "base_url": URL, "router_url": URL}, "rollout.router_url"),
        ({"router_url": URL}, "rollout.router_url"),
        ({"name": "vllm", "engine_kwargs": {"vllm": {"port": 30000}}}, "rollout.engine_kwargs.vllm.port"),
    ],
)
def test_addresses_that_nobody_would_use_are_named(changes: dict[str, Any], culprit: str) -> None:
    rollout = Rollout(**changes)
    with pytest.raises(UserError, match=culprit):
        check_addresses(rollout, engine_name(rollout, "cpu"))


@pytest.mark.parametrize(
    ("changes", "device", "apart", "opens", "way"),
    [
        ({}, "cuda", False, True, "ipc"),
        ({}, "cuda", False, False, "files"),
        ({}, "cuda", True, True, "nccl"),
        ({"base_url": URL}, "cuda", True, True, "files"),
        ({}, "cpu", False, True, "files"),
        ({"weight_sync": "files"}, "cuda", False, True, "files"),
    ],
)
def test_weights_go_the_fastest_way_there_is(
    changes: dict[str, Any], device: str, apart: bool, opens: bool, way: str
) -> None:
    assert resolve_weight_sync(Rollout(name="sglang", **changes), device, apart=apart, opens=opens) == way
