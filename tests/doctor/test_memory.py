"""The estimate beside what runs were measured to take; docs/doctor.md has the same figures."""

import json
import os
import re
from pathlib import Path

import pytest
import torch

from agentrl.config import compose
from agentrl.doctor.memory import GIB, kept_by_server, memory, parts, size_of
from agentrl.training.perf.pass_size import UNITS

QWEN = {"model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "tie_word_embeddings": True}  # fmt: skip
SMOLLM = {"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
          "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
          "tie_word_embeddings": True}  # fmt: skip
COMPILED = ["actor.use_torch_compile=true", "actor.ppo_max_token_len_per_gpu=8192", "rollout.name=sglang"]
RESHARD = "actor.fsdp_config.reshard_after_forward"
UNCOMPILED = ["actor.use_torch_compile=false", "actor.ppo_max_token_len_per_gpu=14600", "rollout.name=sglang"]
RUNS = [
    (QWEN, "train", COMPILED, "cuda", 1, 46.5),
    (QWEN, "train", UNCOMPILED, "cuda", 1, 83.2),
    (QWEN, "train", [*COMPILED, f"{RESHARD}=false"], "cuda", 2, 36),
    (QWEN, "train", [*COMPILED, f"{RESHARD}=true"], "cuda", 2, 30),
    (SMOLLM, "demo", ["rollout.name=hf"], "cpu", 1, 3.2),
]
DOCS = Path(__file__).parents[2] / "docs" / "doctor.md"


def estimate(folder: Path, shape: dict, preset: str, settings: list[str], device: str, processes: int) -> float:
    (folder / "config.json").write_text(json.dumps(shape))
    config = compose([f"model.path={folder}", *settings], config_name=preset, checks=())
    return sum(parts(config, size_of(config), processes, torch.device(device)).values())


@pytest.mark.parametrize(("shape", "preset", "settings", "device", "processes", "measured"), RUNS)
def test_it_is_near_what_was_measured(tmp_path, shape, preset, settings, device, processes, measured) -> None:
    said = estimate(tmp_path, shape, preset, settings, device, processes)
    assert said == pytest.approx(measured, rel=0.16)
    assert f"{said:.1f} GiB" in re.findall(r"\| ([\d.]+ GiB) \|", DOCS.read_text())


def test_passes_are_as_large_as_fits(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    config = compose([f"model.path={tmp_path}", "rollout.name=sglang"], config_name="train", checks=())
    size, gpu = size_of(config), torch.device("cuda")
    small, large = (parts(config, size, 1, gpu, room * GIB) for room in (80, 140))
    assert sum(small.values()) < 80 < sum(large.values()) < 140
    assert small["activations"] < large["activations"] - 40
    fixed = compose([f"model.path={tmp_path}", *COMPILED], config_name="train", checks=())
    kept, plain = parts(fixed, size, 1, gpu, 140.0 * GIB), parts(fixed, size, 1, gpu)
    assert kept.pop("logits") == pytest.approx(plain.pop("logits") + 8192 * 151936 * 2 / GIB)
    assert kept == plain


def test_a_process_gathers_its_own_experts_alone(tmp_path: Path) -> None:
    mixture = {"model_type": "qwen3_moe", "num_hidden_layers": 2, "num_experts": 64, "hidden_size": 256}
    (tmp_path / "config.json").write_text(json.dumps(mixture))
    settings = [f"model.path={tmp_path}", "rollout.name=sglang", f"{RESHARD}=true", "trainer.n_gpus_per_node=2"]
    one, two = (compose([*settings, f"actor.fsdp_config.expert_parallel_size={n}"], checks=()) for n in (1, 2))
    size, gpu = size_of(one), torch.device("cuda")
    assert 0 < size.experts < size.parameters
    gathered, half = (parts(config, size, 2, gpu).pop("weights to compute with") for config in (one, two))
    assert gathered - half == pytest.approx(size.experts * UNITS / size.sizes.layers / GIB)


def test_a_cpu_is_asked_for_what_it_has(tmp_path: Path) -> None:
    """With nothing set, 135M parameters once took 27 GiB."""
    assert estimate(tmp_path, SMOLLM, "train", ["rollout.name=hf"], "cpu", 1) < 9


def test_what_costs_memory_counts(tmp_path: Path) -> None:
    def said(*settings: str) -> float:
        return estimate(tmp_path, QWEN, "train", [*COMPILED, *settings], "cuda", 1)

    plain = said()
    assert said("actor.use_torch_compile=false") > plain + 10
    assert said("model.enable_gradient_checkpointing=true") < plain - 10
    assert said("actor.use_kl_loss=true") == pytest.approx(plain + 6.41, abs=0.1)
    assert said("algorithm.adv_estimator=gae") == pytest.approx(plain + 4 * 6.41, abs=0.1)
    moments = {"adamw_16bit": 4, "adamw_8bit": 2}
    for name, size in moments.items():
        assert said(f"actor.optim.optimizer={name}") == pytest.approx(plain - (8 - size) / 4 * 6.41, abs=0.1)
    for key in ("optimizer_offload", "offload_policy"):
        assert said(f"actor.fsdp_config.{key}=true") == pytest.approx(plain - 2 * 6.41, abs=0.1)
    assert said("model.enable_activation_offload=true") < said("model.enable_gradient_checkpointing=true")
    lora = said("model.lora_rank=16")
    assert lora < plain - 15
    assert said("model.lora_rank=16", "model.lora_merge=false") == pytest.approx(lora + 3.2, abs=0.1)
    whole = said("model.lora_rank=256")
    adapter = said("model.lora_rank=512") - whole  # weights, gradients and two moments of four bytes
    assert said("model.lora_rank=256", "model.policies=[a,b]") == pytest.approx(whole + adapter * 3 / 4, abs=0.1)


def test_what_is_trained_takes_four_bytes_whatever_the_dtype(tmp_path: Path) -> None:
    def said(*settings: str) -> float:
        return estimate(tmp_path, QWEN, "train", [*COMPILED, *settings], "cuda", 1)

    half = "model.dtype=bfloat16"
    assert said(half) == pytest.approx(said())
    assert said(half, "actor.use_kl_loss=true") == pytest.approx(said() + 3.2, abs=0.1)  # the reference is not trained
    assert said(half, "model.lora_rank=16") < said("model.lora_rank=16") - 5


def test_the_finding_names_what_is_in_cpu_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimizer with its copies of weights and gradients: 16 bytes a parameter."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    monkeypatch.setattr("agentrl.doctor.memory.device_memory", lambda _: 80 * GIB)
    settings = [f"model.path={tmp_path}", "rollout.name=hf", "actor.fsdp_config.optimizer_offload=true"]
    config = compose(settings, config_name="train", checks=())
    (finding,) = memory(config, torch.device("cuda"), 1)
    assert "AdamW 0 MiB" in finding.text
    assert "; the optimizer on the CPU 25.6 GiB; this GPU has 80.0 GiB" in finding.text


def test_a_server_that_stays_awake_keeps_its_part(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN | {"dtype": "bfloat16"}))
    with (tmp_path / "model.safetensors").open("wb") as file:
        os.truncate(file.fileno(), 2 * 1_720 * 10**6)
    work = [f"model.path={tmp_path}", "data.train_batch_size=64", "rollout.n=8", "rollout.max_model_len=776"]
    found = {}
    for name, more, processes in (("null", [], 1), ("true", ["true"], 1), ("false", ["false"], 1), ("ranks", [], 2)):
        settings = [*work, *(f"rollout.free_cache_engine={value}" for value in more)]
        config = compose(settings, config_name="train", checks=())
        found[name] = kept_by_server(config, torch.device("cuda"), processes, 140.0)
    null, ranks = pytest.approx(62.8, abs=0.1), pytest.approx(37.3, abs=0.1)
    assert found == {"null": null, "true": 0.0, "false": 70.0, "ranks": ranks}
