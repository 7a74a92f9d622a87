"""Output layers that compute in float32 while the layers below compute in half precision.

A logit of 20 in bfloat16 is a multiple of 1/8: this rounding is the largest part of the gap between trainer and engine
(arXiv 2506.13585, 2510.13786). Inputs and weights keep their half precision, as in the engines: the product of two
half-precision numbers is exact in float32.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.training.perf.device import as_autocast


class Float32Linear(nn.Linear):
    """A linear layer with outputs in float32."""

    in_float32 = True

    def forward(self, input: Tensor) -> Tensor:
        """[..., in], of any dtype -> f32 [..., out]."""
        operands = [None if x is None else as_autocast(x).float() for x in (input, self.weight, self.bias)]
        with torch.autocast(input.device.type, enabled=False):
            return F.linear(*operands)


def in_float32(head: nn.Module) -> None:
    """Make every linear layer of an output layer (one; three with an adapter) compute in float32."""
    for layer in head.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = Float32Linear


def heads_in_float32(network: PreTrainedModel) -> None:
    """Make all layers after a model's backbone, which give values or scores, compute in float32."""
    if network.base_model is network:  # a custom class: its backbone is unknown
        return
    for name, child in network.named_children():
        if name != network.base_model_prefix:
            in_float32(child)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a [n, k] @ b [k, m] in float32, f32 [n, m]; a float32 or as `b`, `b` of any floating dtype.

    On a GPU, tensor cores multiply bfloat16 exactly and add in float32. A float32 `a` is then split into two bfloat16
    terms, which have 16 of its 24 bits.
    """
    with torch.autocast(a.device.type, enabled=False):
        if a.dtype == b.dtype != torch.float32:
            return _half_product(a, b)
        if b.dtype == torch.bfloat16:
            high = a.bfloat16()
            return _half_product(high, b) + _half_product((a - high.float()).bfloat16(), b)
        return a.float() @ b.float()


def _half_product(a: Tensor, b: Tensor) -> Tensor:
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()
