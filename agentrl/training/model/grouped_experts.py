"""Experts of a mixture as grouped matrix products, for every family whose experts transformers dispatches.

Tokens are sorted by expert once per layer. Sorting and adding up are gathers in both directions: transformers' own
`grouped_mm` leaves their gradients to `index_put_`, which adds with atomics or sorts again. No size is read from the
device, so a compiled block has no graph break here.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, _grouped_linear

GROUPED = "agentrl_grouped"
"""The name of these products among transformers' implementations of experts."""
ALIGNED = 8
"""Ranks are multiples of it: rows of 16 bytes in half precision."""


def use_grouped_experts(model: PreTrainedModel) -> None:
    """Let the experts that transformers dispatches be computed here; any other model stays as it is."""
    if any(hasattr(layer, "_is_expert_parallel") for layer in model.modules()):
        ALL_EXPERTS_FUNCTIONS.register(GROUPED, grouped_experts)
        model.set_experts_implementation(GROUPED)


def use_grouped_adapters(model: Any) -> None:
    """Let adapters of parameters add products of low rank; peft adds up whole weights in each pass."""
    for wrapper in [part for part in model.modules() if hasattr(part, "parameter_name")]:
        layer = wrapper.get_base_layer()
        if type(layer) is nn.Linear:
            wrapper.forward = partial(_linear, wrapper)
        elif hasattr(layer, "_is_expert_parallel"):
            layer.adapters = getattr(layer, "adapters", {}) | {wrapper.parameter_name: wrapper}
            wrapper.forward = partial(_forward, wrapper, wrapper.forward)


def _forward(wrapper: Any, of_peft: Callable[..., Tensor], *given: Tensor) -> Tensor:
    grouped = wrapper.get_base_layer().config._experts_implementation == GROUPED
    found: Tensor = wrapper.base_layer(*given) if grouped else of_peft(*given)
    return found


def _linear(wrapper: Any, rows: Tensor) -> Tensor:
    found: Tensor = wrapper.base_layer(rows)
    for active in _active(wrapper):
        found = found + wrapper.lora_B[active](wrapper.lora_A[active](rows)) * wrapper.scaling[active]
    return found


def _active(wrapper: Any) -> list[str]:
    return [] if wrapper.disable_adapters or wrapper.merged else wrapper.active_adapters


def grouped_experts(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The outputs [T, H] of experts, in the dtype of `hidden_states`.

    `hidden_states` [T, H]; `top_k_index` int [T, k]: the experts of each token; `top_k_weights` [T, k]: their shares.
    Products are computed in the dtype of the weights.
    """
    order = top_k_index.flatten().argsort(stable=True)
    experts = top_k_index.flatten()[order]
    numbers = torch.arange(self.num_experts, device=experts.device)
    ends = torch.searchsorted(experts, numbers, right=True, out_int32=True)
    name = "gate_up_proj" if self.has_gate else "up_proj"
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    rows = _Sorted.apply(hidden_states.to(getattr(self, name).dtype), order, inverse)
    inner = _products(self, name, rows, experts, ends)
    inner = self._apply_gate(inner) if self.has_gate else self.act_fn(inner)
    outer = _products(self, "down_proj", inner, experts, ends)
    if self.has_post_expert_norm:
        outer = self.post_expert_norm(outer)
    found: Tensor = _Summed.apply(outer, top_k_weights, order, inverse)
    return found.to(hidden_states.dtype)


def _products(layer: Any, name: str, rows: Tensor, experts: Tensor, ends: Tensor) -> Tensor:
    """Rows [S, n], sorted by expert, times the weights of their experts."""
    bias = F.embedding(experts, getattr(layer, f"{name}_bias")).to(rows.dtype) if layer.has_bias else None
    found: Tensor = _grouped_linear(rows, getattr(layer, name), ends, bias=bias, is_transposed=layer.is_transposed)
    if adapter := getattr(layer, "adapters", {}).get(name):
        for active in _active(adapter):
            found = found + _low_rank(adapter, active, rows, ends)
    return found


def _low_rank(adapter: Any, active: str, rows: Tensor, ends: Tensor) -> Tensor:
    """Rows [S, n] times the two small matrices of their experts, [S, m]."""
    down, up = (part[active].weight.to(rows.dtype) for part in (adapter.lora_A, adapter.lora_B))
    down = down.view(adapter.num_experts, -1, down.shape[-1])
    up = up.view(len(up), -1, adapter.num_experts).permute(2, 0, 1).contiguous()
    fill = -down.shape[1] % ALIGNED
    down, up = F.pad(down, (0, 0, 0, fill)), F.pad(up, (0, fill))
    found: Tensor = _grouped_linear(_grouped_linear(rows, down, ends), up, ends)
    return found * adapter.scaling[active]


class _Sorted(torch.autograd.Function):
    """Each token k times, in the order of the experts: [T, H] -> [T * k, H]."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.shape = len(tokens), len(order) // len(tokens), -1
        return tokens[order // ctx.shape[1]]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (inverse,) = ctx.saved_tensors
        return gradients[0][inverse].view(ctx.shape).sum(1), None, None


class _Summed(torch.autograd.Function):
    """The weighted sum of each token's k rows: rows [T * k, H], weights [T, k] -> [T, H]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights, order, inverse)
        return (rows[inverse].view(*weights.shape, -1) * weights[..., None]).sum(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, weights, order, inverse = ctx.saved_tensors
        (total,) = gradients
        shares = weights.flatten()[order, None]
        to_rows = (total[order // weights.shape[1]] * shares).to(rows.dtype)
        to_weights = (rows[inverse].view(*weights.shape, -1) * total[:, None]).sum(-1)
        return to_rows, to_weights.to(weights.dtype), None, None
