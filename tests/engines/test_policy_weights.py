"""What travels is what `save_pretrained` of the merged model writes: names, values, tied weights left out."""

import copy
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentrl.config.schema import Config, Model, Rollout
from agentrl.core.errors import UserError
from agentrl.engines.sending import sent_weights
from agentrl.engines.servers.weights import PolicyWeights
from agentrl.engines.servers.weights.bucket import buckets
from agentrl.engines.servers.weights.files import FilesTransport
from agentrl.engines.servers.weights.transport import Link
from agentrl.training.model.adapter import new_adapter
from tests.engines import tiny
from tests.training.test_export import source, tensors

IDS = list(range(5, 25))


def moe() -> Any:
    torch.manual_seed(0)
    sizes = {**tiny.SIZES, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes)).eval()


MODELS = {
    "tied": tiny.llama,
    "untied": lambda: tiny.llama(tie_word_embeddings=False),
    "biases": tiny.qwen2,
    "lora": tiny.lora,
    "experts": moe,
}


def written(model: Any, folder: Path) -> dict[str, torch.Tensor]:
    model = copy.deepcopy(model)
    merged = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
    merged.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", MODELS)
def test_names_and_values(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    before = {n: p.clone() for n, p in model.named_parameters()}
    sent = dict(PolicyWeights(model).tensors())
    saved = written(model, tmp_path)
    assert sent.keys() == saved.keys()
    for key, tensor in saved.items():
        torch.testing.assert_close(sent[key], tensor, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters()), "sending changed the policy"


@pytest.mark.parametrize("name", ["tied", "lora", "experts"])
def test_it_follows_the_policy(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    weights = PolicyWeights(model)
    tiny.change(model)
    for key, tensor in written(model, tmp_path).items():
        torch.testing.assert_close(dict(weights.tensors())[key], tensor, rtol=1e-5, atol=1e-6)


ALL = {"target_modules": "all-linear"}
EXPERTS = {"target_modules": ["q_proj", "gate_proj", "up_proj", "down_proj"]}
FAMILIES = {
    "qwen3_moe": (ALL, EXPERTS, {"target_modules": ["q_proj"], "modules_to_save": ["norm", "input_layernorm"]}),
    "deepseek_v3": (ALL, EXPERTS | {"target_modules": [*EXPERTS["target_modules"], "q_a_proj"]}),
    "minimax_m2": (ALL, {"target_modules": ["q_proj", "w1", "w2", "w3"]}),
    "gpt_oss": (ALL, {"target_modules": ["q_proj"], "target_parameters": ["experts.gate_up_proj"]}),
    "ernie4_5_moe": (ALL, EXPERTS),
    "llama": (ALL | {"use_dora": True}, {"target_modules": ["q_proj"], "lora_bias": False, "use_rslora": True}),
}


@pytest.mark.parametrize(("kind", "targets"), [(kind, t) for kind, all_ in FAMILIES.items() for t in all_], ids=str)
async def test_a_server_reads_the_merged_policy(kind: str, targets: dict[str, Any], tmp_path: Path) -> None:
    base = source(kind, tmp_path / "base")
    module: Any = AutoModelForCausalLM.from_pretrained(base).eval()
    if targets == ALL:
        module = new_adapter(module, Model(lora_rank=4))
    else:
        module = get_peft_model(module, LoraConfig(r=4, task_type="CAUSAL_LM", **targets)).eval()
    transport = FilesTransport(Link(PolicyWeights(module), module.config, tmp_path / "sent", 1 << 14))
    for _ in range(2):
        tiny.change(module)
        await transport.push([])
        module.config.save_pretrained(tmp_path / "read")
        save_file(tensors(tmp_path / "sent"), tmp_path / "read" / "model.safetensors", metadata={"format": "pt"})
        server, found = AutoModelForCausalLM.from_pretrained(tmp_path / "read", output_loading_info=True)
        assert not any(found.values()), found
        torch.testing.assert_close(tiny.logits(server.eval(), IDS), tiny.logits(module, IDS), rtol=1e-3, atol=2e-3)


def test_all_linear_layers_are_those_outside_of_experts_and_routers(tmp_path: Path) -> None:
    module: Any = AutoModelForCausalLM.from_pretrained(source("deepseek_v3", tmp_path / "base"))
    module = new_adapter(module, Model(lora_rank=4))
    trained = {name.split(".lora_")[0] for name, p in module.named_parameters() if p.requires_grad}
    assert not any("experts" in name or "gate" in name or "lm_head" in name for name in trained)
    assert {name.rpartition(".")[2] for name in trained} >= {"q_a_proj", "kv_b_proj", "o_proj"}


def test_tables_are_sent_in_their_own_dtype(tmp_path: Path) -> None:
    """A router's bias that is rounded chooses other experts; engines have it in float32."""
    module: Any = AutoModelForCausalLM.from_pretrained(source("deepseek_v3", tmp_path / "base"))
    sent = dict(PolicyWeights(module, dtype=torch.bfloat16).tensors())
    buffers = {name for name in sent if name.endswith("e_score_correction_bias")}
    assert buffers
    assert {sent[name].dtype for name in buffers} == {torch.float32}
    assert {t.dtype for name, t in sent.items() if name not in buffers} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state | {"model.strange": torch.ones(1)}, "model.strange"),
        (
            lambda state: {n: t for n, t in state.items() if "q_proj" not in n},
            "model.layers.0.self_attn.q_proj",
        ),
    ],
)
def test_a_name_that_servers_would_skip_is_an_error(change: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    merged = PolicyWeights._merged
    monkeypatch.setattr(PolicyWeights, "_merged", lambda self, state: change(merged(self, state)))
    with pytest.raises(UserError, match=f"servers would not get each weight of this LlamaForCausalLM once.*{said}"):
        list(PolicyWeights(tiny.lora()).tensors())
    for kind, checked in (("never", False), ("first", True)):
        config, device = Config(rollout=Rollout(weight_check=kind)), torch.device("cpu")
        weights: Any = sent_weights(config, tiny.lora(), "files", device)
        with pytest.raises(UserError) if checked else nullcontext():
            list(weights.tensors())


def test_an_adapter_that_peft_cannot_merge_is_refused() -> None:
    with pytest.raises(UserError, match=r"^the adapter cannot be merged .*lora_bias.*; set rollout.name=hf$") as error:
        dict(PolicyWeights(tiny.lora(lora_bias=True)).tensors())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("changes", [{"target_modules": ["embed_tokens"]}, {"target_modules": ["lm_head"]}], ids=str)
def test_an_adapter_of_tied_embeddings_is_refused(changes: dict[str, Any]) -> None:
    """Engines know one tensor for both, and the adapter changes one of them."""
    with pytest.raises(UserError, match=r"model.target_modules: .*cannot be folded into both"):
        PolicyWeights(tiny.lora(**changes))
    PolicyWeights(tiny.lora(tiny.llama(tie_word_embeddings=False), **changes))


@pytest.mark.prevents("weight sync: wrong values with small buckets, missing adapters")
@pytest.mark.parametrize("most", [1, 3000, 1 << 30])
def test_buckets_hold_everything_once_and_keep_their_size(most: int) -> None:
    named = [(f"t{i}", torch.randn(i, 7).to(d)) for i, d in enumerate([torch.float32, torch.bfloat16] * 10, start=1)]
    made = list(buckets(iter(named), most))
    back = [pair for bucket in made for pair in bucket.tensors()]
    assert [name for name, _ in back] == [name for name, _ in named]
    assert all(torch.equal(a, b) and a.dtype == b.dtype for (_, a), (_, b) in zip(back, named, strict=True))
    assert all(bucket.flat.numel() <= most or len(bucket.entries) == 1 for bucket in made)
