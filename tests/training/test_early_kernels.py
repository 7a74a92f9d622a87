"""The attention kernel is chosen while the weights load."""

import json
import threading
import warnings
from pathlib import Path

import pytest
import torch

from agentrl.config.schema import Model
from agentrl.training.model import early_kernels, varlen_fa4
from agentrl.training.model.early_kernels import kernel_chosen

CUDA = torch.device("cuda", 0)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 8}))
    return Model(path=str(tmp_path))


def test_it_runs_beside_the_body_and_ends_with_it(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, loaded, chosen = threading.Event(), threading.Event(), list[int]()

    def choose(config, device) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            begun.set()
            assert loaded.wait(30)
            chosen.append(config.num_attention_heads)
        return True

    monkeypatch.setattr(early_kernels, "kernel_shares", choose)
    filters = list(warnings.filters)
    with kernel_chosen(model, CUDA):
        assert begun.wait(30)
        warnings.simplefilter("error")
        loaded.set()
    assert chosen == [8]
    assert warnings.filters == filters


@pytest.mark.parametrize("reason", ["no model", "a kernel that fails"])
def test_a_failure_is_left_to_those_who_need_the_kernel(
    model: Model, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    asked = list[str]()

    def choose(config, device) -> bool:
        asked.append(config.model_type)
        raise RuntimeError("no kernel")

    monkeypatch.setattr(early_kernels, "kernel_shares", choose)
    model = model if reason == "a kernel that fails" else Model(path="not/here")
    with kernel_chosen(model, CUDA):
        pass
    assert asked == (["llama"] if reason == "a kernel that fails" else [])


def test_nothing_runs_on_a_cpu_or_for_a_models_own_code(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_kernels, "Thread", None)
    with kernel_chosen(model, torch.device("cpu")):
        pass
    model.trust_remote_code = True  # it would be imported twice at once
    with kernel_chosen(model, CUDA):
        pass


def test_compiled_kernels_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"FLASH_ATTENTION_CUTE_DSL_CACHE_{name}" for name in ("DIR", "ENABLED")]
    for name in names:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    varlen_fa4._keep_compiled()
    assert names[1] not in varlen_fa4.os.environ
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "folder"))
    monkeypatch.setenv(names[1], "0")
    varlen_fa4._keep_compiled()
    found = [varlen_fa4.os.environ[name] for name in names]
    assert found == [str(tmp_path / "folder/flash_attention"), "0"]
