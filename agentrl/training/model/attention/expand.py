"""Keys and values as sequences see them, where several sequences see those of one prompt.

Invariant: the gradient of a token is the float32 sum over its sequences, in an order that is always the same.
"""

from typing import Any

import torch
from torch import Tensor


def expand_keys(rows: Tensor, seen: Tensor, order: Tensor, bounds: Tensor) -> Tensor:
    """Rows of tokens [1, heads, S, D] as sequences see them [1, heads, T, D].

    `seen`, `order`, `bounds`: those of `SharedPrompts`.
    """
    found: Tensor = torch.ops.agentrl.expand_keys(rows[0].transpose(0, 1).contiguous(), seen, order, bounds)
    return found.transpose(0, 1)[None]


# Operators of PyTorch do not break compiled graphs.
@torch.library.custom_op("agentrl::expand_keys", mutates_args=())
def _expand_keys(rows: Tensor, seen: Tensor, order: Tensor, bounds: Tensor) -> Tensor:
    """Rows [S, heads, D] at `seen` [T]: [T, heads, D]."""
    return rows.index_select(0, seen)


@_expand_keys.register_fake
def _(rows: Tensor, seen: Tensor, order: Tensor, bounds: Tensor) -> Tensor:
    return rows.new_empty((seen.shape[0], *rows.shape[1:]))


@torch.library.custom_op("agentrl::expand_keys_backward", mutates_args=())
def _expand_keys_backward(gradient: Tensor, seen: Tensor, order: Tensor, bounds: Tensor, size: int) -> Tensor:
    """The sums [size, heads, D] of the gradients [T, heads, D] of each row."""
    flat = gradient.flatten(1).contiguous()
    if flat.is_cuda:
        from agentrl.training.model.attention.expand_kernel import sums

        found = sums(flat, order, bounds)
    else:
        total = flat.new_zeros(size, flat.shape[1], dtype=torch.float32)
        found = total.index_add_(0, seen, flat.float()).to(flat.dtype)
    return found.unflatten(1, gradient.shape[1:])


@_expand_keys_backward.register_fake
def _(gradient: Tensor, seen: Tensor, order: Tensor, bounds: Tensor, size: int) -> Tensor:
    return gradient.new_empty((size, *gradient.shape[1:]))


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    rows, *layout = inputs
    ctx.size = rows.shape[0]
    ctx.save_for_backward(*layout)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return torch.ops.agentrl.expand_keys_backward(gradient, *ctx.saved_tensors, ctx.size), None, None, None


_expand_keys.register_autograd(_gradients, setup_context=_keep)
