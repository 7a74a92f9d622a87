"""Tiny random models of every kind that the engine meets, with distributions that are neither flat nor a point."""

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.25,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def llama(**changes: Any) -> Any:
    return _seeded(lambda: LlamaForCausalLM(LlamaConfig(**{**SIZES, "tie_word_embeddings": True, **changes})))


def llama3_rope() -> Any:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    return llama(rope_parameters=rope)


def mistral(**changes: Any) -> Any:
    return _seeded(lambda: MistralForCausalLM(MistralConfig(**{**SIZES, "sliding_window": None, **changes})))


def qwen2() -> Any:
    model = _seeded(lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # zero at first, which would hide a bias that is left out
                parameter.normal_(std=0.5)
    return model


def qwen3() -> Any:
    model = _seeded(lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                parameter.uniform_(0.5, 1.5)
    return model


def gpt2() -> Any:
    sizes = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 4096}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return _seeded(lambda: GPT2LMHeadModel(GPT2Config(**sizes, **ends, initializer_range=0.25)))


def lora(base: Any = None, **changes: Any) -> Any:
    config = LoraConfig(
        **{"r": 4, "lora_alpha": 6, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **changes}
    )
    model = get_peft_model(llama() if base is None else base, config)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # zero at first, which would hide an adapter that is left out
                parameter.normal_(std=0.2)
    return model.eval()


def _seeded(make: Any) -> Any:
    torch.manual_seed(0)
    return make().eval()


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    """Reference float32 logits [tokens, vocabulary], on the CPU."""
    device = next(model.parameters()).device
    with torch.no_grad():
        return model(torch.tensor([ids], device=device)).logits[0].float().cpu()


def change(model: Any) -> None:
    """Move every trainable parameter, in place as an optimizer does."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
