"""A server on the trainer's GPU stays awake where both fit."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema import Config
from agentrl.engines.sharing import Sharing, shared
from tests.doctor.test_memory import QWEN
from tests.engines.test_fast_flags import config_of

GB = 10**9


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder with the configuration of a Qwen3 of 1.7 billion parameters, and a file of their size."""
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "bfloat16", **QWEN}))
    with (tmp_path / "model.safetensors").open("wb") as file:
        os.truncate(file.fileno(), 2 * 1_720 * 10**6)
    return str(tmp_path)


def work(model: str | None, **changes: Any) -> Config:
    """512 trajectories of at most 776 tokens."""
    batch = {"data__train_batch_size": 64, "rollout__n": 8, "rollout__max_model_len": 776}
    return config_of(**{"model__path": model} | batch | changes)


def test_it_sleeps_where_the_gpu_is_too_small(model: str) -> None:
    large, small = (shared(work(model), Sharing(), "bfloat16", memory * GB) for memory in (150, 85))
    assert (large.sleeps, large.fits) == (False, True)
    assert (small.sleeps, small.fits) == (True, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"data__train_batch_size": 128},
        {"trainer__max_staleness": 4},
        {"rollout__max_model_len": 32768},
        {"rollout__gpu_memory_utilization": 0.8},
        {"actor__use_torch_compile": False},  # activations of twice the size
        {"actor__fsdp_config__param_offload": True},  # the trainer asks for memory, too
        {"model__path": "not/here"},
        {"model__path": None},
        {"rollout__free_cache_engine": True},
    ],
    ids=str,
)
def test_it_sleeps_where_something_asks_for_more(model: str, changes: dict[str, Any]) -> None:
    found = shared(work(model, **changes), Sharing(), "bfloat16", 150 * GB)
    assert (found.sleeps, found.fits) == (True, False)


def test_it_sleeps_where_little_is_known(model: str) -> None:
    config = work(model)
    assert shared(config, Sharing(), "bfloat16", 0).sleeps  # the GPU
    assert shared(config, Sharing(per_gpu=2), "bfloat16", 150 * GB).sleeps
    (Path(model) / "config.json").write_text('{"dtype": "bfloat16"}')
    assert shared(config, Sharing(), "bfloat16", 150 * GB).sleeps


def test_servers_on_the_gpus_of_ranks_stay_awake_where_both_fit(model: str) -> None:
    for ranks, memory in ((2, 150), (4, 150), (2, 115)):  # each has a part of the optimizer's state and of the cache
        assert not shared(work(model), Sharing(ranks=ranks, replicas=ranks), "bfloat16", memory * GB).sleeps
    assert shared(work(model), Sharing(), "bfloat16", 115 * GB).sleeps
    assert shared(work(model), Sharing(ranks=2, replicas=2), "bfloat16", 60 * GB).sleeps


def test_the_setting_has_the_last_word(model: str) -> None:
    found = shared(work(model, rollout__free_cache_engine=False), Sharing(), "bfloat16", 85 * GB)
    assert (found.sleeps, found.fits) == (False, False)
