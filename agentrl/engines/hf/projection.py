"""Linear layers that read the same input, as one matmul over the module's own parameters.

`joined` makes the parameters of q, k and v (or gate and up) neighbours in one storage: each parameter's data becomes
a slice of it, so that trainer and engine share memory and nothing is copied after an update. To autograd,
optimizers, `state_dict`, `load_state_dict`, `deepcopy` and peft they stay ordinary parameters. An operation that gives
a parameter new memory (`module.to`, loading with `assign=True`) undoes this; the next `joined` restores it.

LoRA (arXiv 2106.09685) is computed as the trainer does, base plus B(A(x)) * scaling in the adapter's dtype, never
merged. The adapters of joined layers run as one: their A stacked, their B block-diagonal with the scaling
multiplied in. These are copies; every `Projection` makes them again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from agentrl.engines.hf.adapters import AS_IS, LoadedAdapter


class Unsupported(Exception):
    """The forward pass does not support the module; the message names the reason."""


@dataclass(frozen=True)
class Adapter:
    """LoRA over joined layers: `a` [ranks, in], `b` [out, ranks], scaling included."""

    a: Tensor
    b: Tensor

    def __call__(self, x: Tensor, base: Tensor) -> Tensor:
        inner = functional.linear(x.to(self.a.dtype), self.a)
        if self.b.dtype == base.dtype:
            return torch.addmm(base, inner, self.b.t())
        return torch.addmm(base.to(self.b.dtype), inner, self.b.t()).to(base.dtype)


class Projection:
    """`[n, in] -> [n, sum of out]` for linear layers, each plain or wrapped by peft. Raises Unsupported."""

    def __init__(self, *layers: nn.Module, adapter: LoadedAdapter = AS_IS) -> None:
        bases = [_base(layer) for layer in layers]
        self.weight = joined([base.weight for base in bases])
        self.bias = _bias(bases)
        self.wide = any(_wide(base) for base in bases)
        """Whether the product is computed in float32, from float32 copies of other weights."""
        if self.wide:
            self.weight, self.bias = self.weight.float(), None if self.bias is None else self.bias.float()
        self.adapter = _adapter([_parts(layer, adapter) for layer in layers], [base.out_features for base in bases])

    def __call__(self, x: Tensor) -> Tensor:
        x = x.float() if self.wide else x
        out = functional.linear(x, self.weight, self.bias)
        return out if self.adapter is None else self.adapter(x, out)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """`residual` plus the projection of `x`, in one operation when there is no bias and no adapter."""
        if self.bias is None and self.adapter is None:
            return torch.addmm(residual, x, self.weight.t())
        return residual + self(x)


def joined(parameters: Sequence[Tensor]) -> Tensor:
    """The parameters one below the other, as a view that shares their memory."""
    first = parameters[0].detach()
    if len(parameters) == 1:
        return first
    if not _neighbours(parameters):
        if len({(p.dtype, p.device, p.shape[1:]) for p in parameters}) > 1:
            raise Unsupported("layers of different dtype, device or width side by side")
        # Outside of inference mode: its tensors could never be trained again.
        with torch.inference_mode(False), torch.no_grad():
            whole = torch.cat([p.detach() for p in parameters])
            for p, piece in zip(parameters, whole.split([len(p) for p in parameters]), strict=True):
                p.data = piece
        first = parameters[0].detach()
    return first.as_strided((sum(len(p) for p in parameters), *first.shape[1:]), first.stride(), first.storage_offset())


def _neighbours(parameters: Sequence[Tensor]) -> bool:
    end: object = None
    for p in parameters:
        same = p.untyped_storage().data_ptr() == parameters[0].untyped_storage().data_ptr()
        if not (same and p.is_contiguous() and end in (None, p.storage_offset())):
            return False
        end = p.storage_offset() + p.numel()
    return True


def _is_lora(layer: nn.Module) -> bool:
    return type(layer).__module__ == "peft.tuners.lora.layer" and type(layer).__name__ == "Linear"


def _base(layer: Any) -> nn.Linear:
    base = layer.base_layer if _is_lora(layer) else layer
    if type(base) is not nn.Linear and not _wide(base):
        raise Unsupported(f"a {type(base).__name__} where a linear layer was expected")
    return base


def _wide(layer: Any) -> bool:
    """Whether the trainer computes the layer's product in float32."""
    return getattr(layer, "in_float32", False)


def _bias(bases: Sequence[nn.Linear]) -> Tensor | None:
    biases = [base.bias for base in bases if base.bias is not None]
    if biases and len(biases) < len(bases):
        raise Unsupported("linear layers with and without bias side by side")
    return joined(biases) if biases else None


def _adapter(parts: Sequence[Sequence[tuple[Tensor, Tensor]]], widths: Sequence[int]) -> Adapter | None:
    flat = [part for of_layer in parts for part in of_layer]
    if not flat:
        return None
    b = flat[0][1].new_zeros(sum(widths), sum(part[0].shape[0] for part in flat))
    row = column = 0
    for width, of_layer in zip(widths, parts, strict=True):
        for _, piece in of_layer:
            b[row : row + width, column : column + piece.shape[1]] = piece
            column += piece.shape[1]
        row += width
    return Adapter(torch.cat([part[0] for part in flat]), b)


def _parts(layer: Any, adapter: LoadedAdapter) -> list[tuple[Tensor, Tensor]]:
    """A and scaled B of an adapter of the layer, or of each that is active in it; none where they are off or merged."""
    if adapter.parts is not None:
        return [found for found in [adapter.parts.get(_base(layer))] if found]
    if not _is_lora(layer) or layer.disable_adapters or layer.merged:
        return []
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    if any(name in layer.lora_variant for name in active) or layer.fan_in_fan_out:
        raise Unsupported("a LoRA variant other than the plain one")
    if any(layer.lora_B[name].bias is not None for name in active):
        raise Unsupported("LoRA with a bias")
    return [
        (layer.lora_A[name].weight.detach(), layer.lora_B[name].weight.detach() * layer.scaling[name])
        for name in active
    ]
