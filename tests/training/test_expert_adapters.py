"""Adapters of experts: every family trains them, and each way to keep them gives the same model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch._dynamo.backends.debugging import aot_eager
from transformers import AutoModelForCausalLM

from agentrl.config.schema import Model
from agentrl.core.errors import UserError
from agentrl.engines.servers.weights.adapter import AdapterWeights
from agentrl.engines.servers.weights.policy import PolicyWeights
from agentrl.training.model.adapter import new_adapter
from agentrl.training.model.experts import expert_layers
from agentrl.training.model.export import save_pretrained
from agentrl.training.model.grouped_experts import use_grouped_adapters, use_grouped_experts
from agentrl.training.model.handle import ModelHandle
from tests.training.mixtures import FAMILIES, mixture
from tests.training.tiny import tiny

IDS = torch.arange(3, 40)[None]
NO_TOKENIZER: Any = SimpleNamespace(save_pretrained=lambda _: None)


def adapted(folder: Path, kind: str, **fields: Any) -> PeftModel:
    """A saved random mixture with an adapter that changes every layer."""
    mixture(kind).save_pretrained(folder)
    settings = Model(path=str(folder), lora_rank=4, **{"target_parameters": "all-experts"} | fields)
    module = new_adapter(AutoModelForCausalLM.from_pretrained(folder), settings)
    for name, parameter in module.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return module.eval()


def logits(module: Any) -> torch.Tensor:
    return module(input_ids=IDS, use_cache=False).logits


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_trains_them_and_keeps_them(kind: str, tmp_path: Path) -> None:
    module = adapted(tmp_path / "base", kind)
    wanted = logits(module)
    wanted.logsumexp(-1).sum().backward()
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    layers = len(expert_layers(module))
    assert sum(".experts." in name for name in trained) == 4 * layers  # two matrices of each of two weights
    assert all(p.grad is not None and p.grad.any() for p in trained.values())
    plain = [name for name, part in module.get_base_model().named_modules() if type(part) is torch.nn.Linear]
    assert [name for name in plain if "base_layer" not in name and "lora_" not in name] == ["lm_head"]
    sent = {name: tensor.clone() for name, tensor in PolicyWeights(module).tensors()}
    save_pretrained(module, NO_TOKENIZER, tmp_path / "adapter")
    plain = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    torch.testing.assert_close(logits(plain), wanted, atol=1e-5, rtol=1e-5)
    save_pretrained(module, NO_TOKENIZER, tmp_path / "merged", merge=True)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), wanted, atol=1e-4, rtol=1e-5)  # sums in another order
    torch.testing.assert_close(sent, load_file(tmp_path / "merged/model.safetensors"))


@pytest.mark.parametrize("kind", FAMILIES)
def test_products_of_low_rank_equal_the_adapters_of_peft(kind: str, tmp_path: Path) -> None:
    module, found = adapted(tmp_path, kind), []
    use_grouped_experts(module.get_base_model())
    for grouped in (False, True):
        if grouped:
            use_grouped_adapters(module)
        module.zero_grad()
        made = logits(module)
        made.logsumexp(-1).sum().backward()
        found.append((made.detach(), {name: p.grad for name, p in module.named_parameters() if p.requires_grad}))
    torch.testing.assert_close(found[1][0], found[0][0], atol=1e-4, rtol=1e-4)
    for name, gradient in found[1][1].items():
        wanted = found[0][1][name]
        torch.testing.assert_close(gradient, wanted, atol=1e-4 * float(wanted.abs().max()), rtol=1e-3)
    with module.disable_adapter():
        plain = logits(module)
    torch.testing.assert_close(plain, logits(AutoModelForCausalLM.from_pretrained(tmp_path)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss"])
def test_a_block_with_adapted_experts_compiles_into_one_graph(kind: str, tmp_path: Path) -> None:
    module, graphs = adapted(tmp_path, kind), []
    use_grouped_experts(module.get_base_model())
    use_grouped_adapters(module.bfloat16())
    block = ModelHandle(module).blocks()[0][1]
    experts = next(part for part in block.modules() if hasattr(part, "parameter_name"))

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return aot_eager(graph, inputs)

    call = torch.compile(experts._call_impl, dynamic=True, backend=backend, fullgraph=True)
    index = torch.randint(0, 6, (9, 2))
    call(torch.randn(9, 32, dtype=torch.bfloat16), index, torch.rand(9, 2)).sum().backward()
    assert len(graphs) == 1


def test_some_parameters(tmp_path: Path) -> None:
    module = adapted(tmp_path, "mixtral", target_parameters=["experts.down_proj"])
    trained = [name for name, p in module.named_parameters() if p.requires_grad and ".experts." in name]
    assert len(trained) == 2 * len(expert_layers(module))
    assert {p.parameter_name for p in module.modules() if hasattr(p, "parameter_name")} == {"down_proj"}


@pytest.mark.parametrize("wanted", ["all-experts", ["experts.none"]])
def test_a_model_without_them(wanted: Any) -> None:
    with pytest.raises(UserError, match="model.target_parameters .*: the model has none of these; remove it"):
        new_adapter(tiny(), Model(lora_rank=4, target_parameters=wanted))


def test_servers_take_them_merged_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="engines take no adapter of .*experts.*set model.lora_merge=true"):
        AdapterWeights(adapted(tmp_path, "qwen3_moe"))
