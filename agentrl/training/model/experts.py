"""Mixtures of experts: the expert layers and routers of a loaded model, and what hooks on them see in a pass.

Every family of transformers calls its expert layer with (hidden states, chosen experts, their weights), and declares
which module makes its router's logits: no family is named here.
"""

from typing import Any

import torch
from torch import Tensor, nn


def stacked_weights(layer: nn.Module) -> dict[str, nn.Parameter]:
    """The weights [experts, n, m] of an expert layer by name; of any other module none."""
    if getattr(layer, "num_experts", 1) == 1:  # heads, convolutions and position tables are stacked too
        return {}
    return {name: p for name, p in layer.named_parameters(recurse=False) if p.dim() == 3}


def expert_layers(module: nn.Module) -> dict[str, nn.Module]:
    """The layers of routed experts by name, in the order of the model's layers."""
    return {name: part for name, part in module.named_modules() if stacked_weights(part)}


def routers_of(module: nn.Module) -> list[tuple[nn.Module, int]]:
    """Each router, with the index of its logits [..., experts] in what its forward returns."""
    declared = [getattr(part, "_can_record_outputs", None) for part in module.modules()]
    kinds = {_kind(kind) for found in declared if found for kind in _listed(found.get("router_logits"))}
    pairs = ((part, index) for part in module.modules() for kind, index in kinds if isinstance(part, kind))
    return [(part, index) for part, index in pairs if not expert_layers(part)]


def tokens_per_expert(given: tuple[Any, ...], experts: int) -> Tensor:
    """Number of tokens i64 [experts] that each expert of a layer gets, by the arguments of its forward."""
    if len(given) == 1:  # Llama 4 gives each expert all tokens, and zeros for those that it is not chosen for
        return given[0].detach().view(experts, -1, given[0].shape[-1]).any(-1).sum(-1)
    chosen: Tensor = given[1].flatten()
    counts = torch.zeros(experts, dtype=torch.int64, device=chosen.device)
    return counts.scatter_add_(0, chosen, torch.ones_like(chosen))


def balance_loss(logits: Tensor, counts: Tensor) -> Tensor:
    """The sum over tokens of the load-balancing loss of a layer, a scalar (arXiv 2101.03961).

    A token's loss is the number of its experts where all are chosen equally often. `logits` [..., experts] of tokens,
    `counts` [experts] of these.
    """
    return len(counts) * (logits.flatten(0, -2).float().softmax(-1).mean(0) * counts).sum()


def _listed(declared: Any) -> list[Any]:
    return declared if isinstance(declared, list) else [declared] if declared else []


def _kind(declared: Any) -> tuple[type[nn.Module], int]:
    """(class, index of its output) of a module that transformers records."""
    return (declared, 0) if isinstance(declared, type) else (declared.target_class, declared.index)
