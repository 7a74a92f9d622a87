"""Tiny mixtures of experts of many families."""

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.packing_probe import pack_where_exact
from tests.training.tiny import CPU, VOCABULARY

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_experts": 6,
    "num_local_experts": 6,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "shared_expert_intermediate_size": 16,
    "first_k_dense_replace": 0,
    "num_dense_layers": 0,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "ssm_state_size": 8,
    "n_groups": 2,
}
"""Sizes by the names that some family has for them."""
OWN: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"num_key_value_heads": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "nemotron_h": {"layers_block_type": ["full_attention", "moe"]},
    "llama4_text": {"interleave_moe_layer_step": 1, "intermediate_size_mlp": 48},
    "qwen3_5_moe_text": {"layer_types": ["linear_attention", "full_attention"]},
}
FAMILIES = ("qwen3_moe", "mixtral", "gpt_oss", "glm4_moe", "minimax_m2", *OWN)
"""Fused experts of each kind: transposed, without a gate, with biases, with all tokens for all experts."""


def mixture(kind: str, *, seed: int = 0, **fields: Any) -> PreTrainedModel:
    """A random model whose routers choose clearly."""
    known = CONFIG_MAPPING[kind]()
    sizes = {name: value for name, value in SMALL.items() if hasattr(known, name)} | OWN.get(kind, {}) | fields
    if isinstance(getattr(known, "layer_types", None), list) and "layer_types" not in sizes | OWN.get(kind, {}):
        sizes["layer_types"] = ["full_attention"] * sizes["num_hidden_layers"]
    if kind == "nemotron_h":
        sizes.pop("layer_types", None)
    torch.manual_seed(seed)
    module = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**sizes))
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.2)
    pack_where_exact(ModelHandle(module), CPU)
    return module.eval()
