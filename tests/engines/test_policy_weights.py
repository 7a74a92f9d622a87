"""What travels is what `save_pretrained` of the merged model writes: names, values, tied weights left out."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentrl.core.errors import UserError
from agentrl.engines.servers.weights import PolicyWeights
from agentrl.engines.servers.weights.bucket import buckets
from tests.engines import tiny


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


def test_dora_is_refused() -> None:
    with pytest.raises(UserError, match="DoRA"):
        dict(PolicyWeights(tiny.lora(use_dora=True)).tensors())


@pytest.mark.parametrize("changes", [{"target_modules": ["embed_tokens"]}, {"target_modules": ["lm_head"]}], ids=str)
def test_an_adapter_of_tied_embeddings_is_refused(changes: dict[str, Any]) -> None:
    """Engines know one tensor for both, and the adapter changes one of them."""
    with pytest.raises(UserError, match=r"model.target_modules: .*cannot be folded into both"):
        PolicyWeights(tiny.lora(**changes))
    PolicyWeights(tiny.lora(tiny.llama(tie_word_embeddings=False), **changes))


@pytest.mark.parametrize("most", [1, 3000, 1 << 30])
def test_buckets_hold_everything_once_and_keep_their_size(most: int) -> None:
    named = [(f"t{i}", torch.randn(i, 7).to(d)) for i, d in enumerate([torch.float32, torch.bfloat16] * 10, start=1)]
    made = list(buckets(iter(named), most))
    back = [pair for bucket in made for pair in bucket.tensors()]
    assert [name for name, _ in back] == [name for name, _ in named]
    assert all(torch.equal(a, b) and a.dtype == b.dtype for (_, a), (_, b) in zip(back, named, strict=True))
    assert all(bucket.flat.numel() <= most or len(bucket.entries) == 1 for bucket in made)
