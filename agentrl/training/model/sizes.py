"""The sizes of a transformer, by its transformers configuration."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelSizes:
    """Numbers of layers, heads and experts, and their widths."""

    layers: int
    hidden: int
    inner: int
    """Width of the feed-forward layers, of all the experts that a token meets."""
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    """Routed experts of a layer; 1 for a dense model."""
    active_experts: float
    """Share of the experts that a token meets; 1.0 for a dense model."""

    @property
    def attention(self) -> tuple[int, int, int]:
        """(heads, heads of keys and values, width of a head)."""
        return self.heads, self.kv_heads, self.head_dim

    @property
    def queries(self) -> int:
        """Numbers of a token's queries in a layer."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Numbers of a token's keys in a layer, and as many of its values."""
        return self.kv_heads * self.head_dim


def sizes_of(config: Any) -> ModelSizes:
    """The sizes of the text part of a model."""
    text = config.get_text_config()
    heads, hidden = _given(text, "num_attention_heads") or 1, text.hidden_size
    per_token = _given(text, "num_experts_per_tok", "top_k_experts", "moe_topk")
    experts = _given(text, "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts") or 1
    return ModelSizes(
        layers=text.num_hidden_layers,
        hidden=hidden,
        inner=(per_token or 1) * (_given(text, "moe_intermediate_size", "intermediate_size") or 4 * hidden),
        heads=heads,
        kv_heads=_given(text, "num_key_value_heads") or heads,
        head_dim=_given(text, "head_dim") or hidden // heads,
        experts=experts,
        active_experts=(per_token or experts) / experts,
    )


def attention_width(config: Any) -> float:
    """Total width of the layers whose cost grows with the square of a sequence, the mean of their keys' and values'."""
    text, sizes = config.get_text_config(), sizes_of(config)
    kinds = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    kinds = kinds or ["attention"] * sizes.layers
    layers = sum(kind == "hybrid" or ("attention" in kind and "linear" not in kind) for kind in kinds)
    keys, values = (_given(text, name) or sizes.head_dim for name in ("qk_head_dim", "v_head_dim"))
    return layers * sizes.heads * (keys + values) / 2


def _given(config: Any, *names: str) -> int | None:
    """The first of these fields that the configuration sets; the largest value where layers differ."""
    layers = list(config.per_layer_config) if getattr(config, "is_heterogeneous", False) else [config]
    found = ([value for layer in layers if (value := getattr(layer, name, None))] for name in names)
    return next((max(values) for values in found if values), None)
