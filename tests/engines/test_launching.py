"""Which engine a run gets, and what does not fit together."""

from typing import Any

import pytest

from agentrl.config.schema import Rollout
from agentrl.core.errors import UserError
from agentrl.engines.launching import check_addresses, engine_name

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
    ("changes", "device", "shared", "way"),
    [
        ({"name": "sglang"}, "cuda", True, "ipc"),
        ({"name": "sglang", "tensor_model_parallel_size": 2}, "cuda", True, "ipc"),
        ({"name": "vllm"}, "cuda", True, "ipc"),
        ({"name": "vllm", "tensor_model_parallel_size": 2}, "cuda", True, "files"),
        ({"name": "sglang", "nnodes": 1}, "cuda", False, "nccl"),
        ({"name": "sglang", "base_url": URL}, "cuda", False, "files"),
        ({"name": "sglang"}, "cpu", False, "files"),
        ({"name": "sglang", "weight_sync": "files"}, "cuda", True, "files"),
    ],
)
def test_weights_go_the_fastest_way_there_is(changes: dict[str, Any], device: str, shared: bool, way: str) -> None:
    servers = pytest.importorskip("agentrl.runtime.ray.servers", reason="ray is not installed")
    assert servers.weight_sync_method(Rollout(**changes), device, shared) == way
