"""Which models' experts processes can split, and what a rank computes of them alone."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model

from agentrl.core.errors import UserError
from agentrl.training.model.handle import ModelHandle
from agentrl.training.parallel.experts import Routes, split_layers
from agentrl.training.parallel.ranks import ALONE
from tests.training.tiny import tiny

MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def ranks(size: int):
    return replace(ALONE, expert_mesh={"experts": SimpleNamespace(size=lambda: size)})


def test_every_layer_of_experts_is_found() -> None:
    module = tiny("qwen3_moe", **MIXTURE)
    assert split_layers(ModelHandle(module), ranks(2)) == [layer.mlp.experts for layer in module.model.layers]
    assert split_layers(ModelHandle(module), ALONE) == []


def test_a_model_without_experts_is_refused() -> None:
    with pytest.raises(UserError, match="expert_parallel_size=2: a LlamaForCausalLM has no experts"):
        split_layers(ModelHandle(tiny()), ranks(2))


def test_a_number_that_does_not_divide_the_experts_is_refused() -> None:
    with pytest.raises(UserError, match="expert_parallel_size=3 does not divide the 4 experts"):
        split_layers(ModelHandle(tiny("qwen3_moe", **MIXTURE)), ranks(3))


def test_adapters_of_experts_are_refused() -> None:
    targets = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    settings = LoraConfig(r=2, target_modules=["q_proj"], target_parameters=targets, task_type="CAUSAL_LM")
    adapted = get_peft_model(tiny("qwen3_moe", **MIXTURE), settings)
    with pytest.raises(UserError, match="adapters of experts"):
        split_layers(ModelHandle(adapted), ranks(2))


def test_pairs_that_are_delivered_come_back_in_their_order(monkeypatch) -> None:
    monkeypatch.setattr("torch.distributed.all_to_all_single", lambda out, given, *_, **__: out.copy_(given))
    routes = Routes(torch.tensor([2, 0, 3, 1]), [4], [4], None)
    tokens = torch.tensor([[1.0], [2.0]])
    received = routes.deliver(tokens, repeats=2)
    assert received.flatten().tolist() == [2, 1, 2, 1, 0]  # the last row lets a rank without tokens compute as well
    assert routes.bring_back(received).flatten().tolist() == [1, 1, 2, 2]
