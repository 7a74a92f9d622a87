"""Offload GPU memory to the CPU: activations between forward and backward, the optimizer with its steps.

Copies run on the GPU's stream, from and to pinned memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentrl.training.parallel.shards import local

SMALLEST = 2**16
"""Fewest elements of an offloaded tensor."""


def offloaded_activations(on: bool) -> AbstractContextManager[Any]:
    """Context of a forward pass: where it is `on`, autograd's saved tensors are in CPU memory."""
    if not on or not torch.is_grad_enabled():
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_pack, _unpack)


def _pack(tensor: Tensor) -> Any:
    owner = tensor._base if tensor._base is not None else tensor
    weight = isinstance(owner, torch.nn.Parameter) or (owner.is_leaf and owner.requires_grad)
    if weight or tensor.numel() < SMALLEST:  # a compiled block's results are leaves too, without a gradient
        return tensor
    kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    kept.copy_(tensor, non_blocking=True)
    return tensor.device, kept


def _unpack(packed: Any) -> Tensor:
    back: Tensor = packed if isinstance(packed, Tensor) else packed[1].to(packed[0], non_blocking=True)
    return back


class CpuCopies:
    """Copies of parameters in CPU memory, on which an optimizer keeps its state and steps."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        self.of = {parameter: _on_cpu(parameter) for parameter in parameters}
        """Parameter -> its copy."""

    @contextmanager
    def updated(self) -> Iterator[None]:
        """Give the copies values and gradients of the parameters; after the body, copy the new values back."""
        for parameter, copy in self.of.items():
            local(copy).copy_(local(parameter.detach()), non_blocking=True)
            copy.grad = None if parameter.grad is None else _on_cpu(parameter.grad)
        if any(parameter.is_cuda for parameter in self.of):
            torch.cuda.current_stream().synchronize()
        yield
        for parameter, copy in self.of.items():
            local(parameter.detach()).copy_(local(copy), non_blocking=True)
            copy.grad = None


def _on_cpu(tensor: Any) -> Any:
    """A copy that is sharded like the tensor; complete once the GPU's stream is."""
    own = local(tensor.detach())
    copy = torch.empty(own.shape, dtype=own.dtype, pin_memory=own.is_cuda).copy_(own, non_blocking=True)
    return DTensor(copy, tensor._spec, requires_grad=False) if isinstance(tensor, DTensor) else copy
