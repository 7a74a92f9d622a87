"""Finds the parameters of the Llama family in a transformers module; they are views, not copies.

Supported: LlamaForCausalLM (SmolLM2 too), Qwen2ForCausalLM, Qwen3ForCausalLM, MistralForCausalLM, with or without
peft's LoRA. `read_weights` raises Unsupported for every module whose forward pass may differ from forward.py:
its log-probs would be wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.engines.hf.adapters import AS_IS, LoadedAdapter
from agentrl.engines.hf.projection import Projection, Unsupported
from agentrl.engines.hf.slot_pool import Shape

KNOWN = {
    "LlamaForCausalLM": "transformers.models.llama.modeling_llama",
    "MistralForCausalLM": "transformers.models.mistral.modeling_mistral",
    "Qwen2ForCausalLM": "transformers.models.qwen2.modeling_qwen2",
    "Qwen3ForCausalLM": "transformers.models.qwen3.modeling_qwen3",
}
# Rope whose frequencies change with the length would need keys to be computed again.
FIXED_ROPE = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Norm:
    """RMSNorm's weight and epsilon."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            return nn.functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        # On CPUs torch builds it from a dozen operations; these are half as many. Norms are a tenth of a step.
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = scale.square_().div_(x.shape[-1]).add_(self.eps).rsqrt_()
        return (x * scale).mul_(self.weight).to(x.dtype)


@dataclass(frozen=True)
class Layer:
    """One decoder layer."""

    attention_norm: Norm
    qkv: Projection
    q_norm: Norm | None
    k_norm: Norm | None
    output: Projection
    mlp_norm: Norm
    gate_up: Projection
    down: Projection


@dataclass(frozen=True)
class Weights:
    """A whole model."""

    embedding: Tensor
    layers: list[Layer]
    norm: Norm
    head: Projection
    rotary: nn.Module
    heads: int
    kv_heads: int
    head_dim: int
    scaling: float

    @property
    def shape(self) -> Shape:
        """Layout of a token in the cache."""
        weight = self.embedding
        return Shape(len(self.layers), self.kv_heads, self.head_dim, weight.dtype, weight.device)


def read_weights(module: Any, max_len: int, adapter: LoadedAdapter = AS_IS) -> Weights:
    """Views of the module's parameters, and an adapter; raises Unsupported. Sequences will have at most `max_len`
    tokens."""
    if any(config.is_prompt_learning for config in getattr(module, "peft_config", {}).values()):
        raise Unsupported("learned prompts")
    model = module.get_base_model() if hasattr(module, "get_base_model") else module
    name = type(model).__name__
    if type(model).__module__ != KNOWN.get(name):
        raise Unsupported(f"{name} is none of {', '.join(KNOWN)}")
    _check(model, max_len)
    attention = model.model.layers[0].self_attn
    config, project = model.config, partial(Projection, adapter=adapter)
    with torch.no_grad():
        return Weights(
            embedding=_embedding(model.model.embed_tokens),
            layers=[_layer(layer, project) for layer in model.model.layers],
            norm=_norm(model.model.norm),
            head=project(_unwrapped(model.lm_head)),
            rotary=model.model.rotary_emb,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=attention.head_dim,
            scaling=attention.scaling,
        )


def _check(model: Any, max_len: int) -> None:
    config = model.config
    if config.rope_parameters["rope_type"] not in FIXED_ROPE:
        raise Unsupported(f"rope of type {config.rope_parameters['rope_type']}")
    if config.hidden_act not in ("silu", "swish"):
        raise Unsupported(f"activation {config.hidden_act}")
    window = getattr(config, "sliding_window", None)
    if window is not None and getattr(config, "use_sliding_window", True) and window < max_len:
        raise Unsupported(f"a sliding window of {window} tokens, shorter than the {max_len} of max_model_len")
    dtypes = {p.dtype for name, p in model.named_parameters() if "lora_" not in name}
    if len(dtypes) > 1:
        raise Unsupported(f"parameters of several dtypes: {', '.join(sorted(str(dtype) for dtype in dtypes))}")


def _layer(layer: Any, project: Callable[..., Projection]) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return Layer(
        attention_norm=_norm(layer.input_layernorm),
        qkv=project(attention.q_proj, attention.k_proj, attention.v_proj),
        q_norm=_norm(attention.q_norm) if hasattr(attention, "q_norm") else None,
        k_norm=_norm(attention.k_norm) if hasattr(attention, "k_norm") else None,
        output=project(attention.o_proj),
        mlp_norm=_norm(layer.post_attention_layernorm),
        gate_up=project(mlp.gate_proj, mlp.up_proj),
        down=project(mlp.down_proj),
    )


def _norm(norm: Any) -> Norm:
    return Norm(norm.weight.detach(), norm.variance_epsilon)


def _embedding(embedding: Any) -> Tensor:
    embedding = _unwrapped(embedding)
    if type(embedding) is not nn.Embedding:
        raise Unsupported(f"a {type(embedding).__name__} where an embedding was expected")
    return embedding.weight.detach()


def _unwrapped(layer: Any) -> Any:
    """The layer in use where peft keeps trained copies of whole modules (`modules_to_save`)."""
    if type(layer).__name__ != "ModulesToSaveWrapper":
        return layer
    active = [name for name in layer.active_adapters if name in layer.modules_to_save]
    return layer.modules_to_save[active[0]] if active and not layer.disable_adapters else layer.original_module
