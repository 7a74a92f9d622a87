"""Grouped products of experts equal the family's own loop, alone, in half precision and compiled."""

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager

from agentrl.training.model.experts import expert_layers
from agentrl.training.model.grouped_experts import use_grouped_experts
from agentrl.training.model.handle import ModelHandle
from tests.training.tiny import tiny

WIDTHS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "intermediate_size": 16}
FAMILIES = {
    "qwen3_moe": {"num_experts": 8},
    "gpt_oss": {"num_local_experts": 8},  # transposed weights, biases
    "gemma4_text": {"num_experts": 8, "top_k_experts": 2, "enable_moe_block": True},  # a dense MLP in the same block
    "nemotron_h": {  # no gate
        "layers_block_type": ["moe", "attention", "moe"],
        "num_hidden_layers": 3,
        "n_routed_experts": 8,
        "n_group": 1,
        "topk_group": 1,
    },
}


def made(kind: str):
    return tiny(kind, packed=False, **WIDTHS, **FAMILIES[kind])


def pass_of(model, ids) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits, and the gradients of a loss of them."""
    model.zero_grad()
    logits = model(input_ids=ids, use_cache=False).logits
    logits.float().logsumexp(-1).sum().backward()
    return logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", FAMILIES)
def test_grouped_products_equal_the_family_s_loop(kind):
    model, ids = made(kind), torch.arange(3, 40)[None]
    model.set_experts_implementation("eager")
    logits, gradients = pass_of(model, ids)
    use_grouped_experts(model)
    found, grouped = pass_of(model, ids)
    torch.testing.assert_close(found, logits, rtol=1e-5, atol=1e-5)
    assert grouped.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(grouped[name], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max()))


def test_experts_compute_with_half_copies_and_get_float32_gradients():
    model, ids = made("qwen3_moe"), torch.arange(3, 40)[None]
    use_grouped_experts(model)
    _, exact = pass_of(model, ids)
    handle = ModelHandle(model, compute_dtype=torch.bfloat16)
    handle.use_compute_copies()
    with handle.computing():
        assert {p.dtype for part in expert_layers(model).values() for p in part.parameters()} == {torch.bfloat16}
    model.zero_grad()
    handle.run_gathered(lambda: model(input_ids=ids, use_cache=False).logits.float().logsumexp(-1).sum()).backward()
    for name, parameter in model.named_parameters():
        if "experts" in name:
            assert parameter.dtype == parameter.grad.dtype == torch.float32
            assert torch.cosine_similarity(parameter.grad.flatten(), exact[name].flatten(), 0) > 0.99


@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss"])
def test_a_block_with_experts_compiles_into_one_graph(kind):
    model, ids = made(kind), torch.arange(3, 40)[None]
    use_grouped_experts(model)
    handle, graphs = ModelHandle(model, compute_dtype=torch.bfloat16), []
    handle.use_compute_copies()

    def backend(graph, inputs):
        graphs.append(graph)
        return aot_eager(graph, inputs)

    for _, block in handle.blocks():
        block._compiled_call_impl = torch.compile(block._call_impl, dynamic=True, backend=backend, fullgraph=True)
    handle.run_gathered(lambda: model(input_ids=ids, use_cache=False).logits.float().logsumexp(-1).sum()).backward()
    assert 0 < len(graphs) <= len(handle.blocks()) + 1
