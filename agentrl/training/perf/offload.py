"""Offload GPU memory to the CPU: activations between forward and backward, optimizer state between steps.

Copies run on the GPU's stream, from and to pinned memory, so they need no explicit synchronisation.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

SMALLEST = 2**16
"""Fewest elements of an offloaded tensor."""


def offloaded_activations(on: bool) -> AbstractContextManager[Any]:
    """Context of a forward pass: where it is `on`, autograd's saved tensors are in CPU memory."""
    if not on or not torch.is_grad_enabled():
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(*_hooks())


def _hooks() -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]:
    def pack(tensor: Tensor) -> Any:
        owner = tensor._base if tensor._base is not None else tensor
        if owner.is_leaf or tensor.numel() < SMALLEST:  # parameters are leaves: they stay
            return tensor
        kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        kept.copy_(tensor, non_blocking=True)
        return tensor.device, kept

    def unpack(packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        device, kept = packed
        back: Tensor = kept.to(device, non_blocking=True)
        return back

    return pack, unpack


def move_moments(state: dict[Any, dict[str, Any]], *, home: bool) -> None:
    """Move an optimizer's moments to the devices of their parameters (`home`), or to the CPU; numbers stay."""
    for parameter, values in state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.ndim > 0:
                values[name] = value.to(parameter.device if home else "cpu")
