"""Half-precision copies of float32 weights, for the layers to compute with.

Autocast casts every float32 weight in each forward pass and every gradient in each backward pass. Here a copy in half
precision takes the weight's place while the model computes; it is refreshed after the weight changes, once per
optimizer step. Its gradient goes into the weight's float32 `.grad` as soon as a backward pass has it.

The gradients of the token embedding and of the output layer are added to that `.grad` by the layers themselves: only
the rows of tokens that occur are touched, and no gradient of the size of the vocabulary is made for them.

Invariants: forward values equal those of autocast bit for bit; sums over passes are in float32; outside `in_place` the
model has its own weights.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agentrl.training.model.experts import stacked_weights

GradientTarget = Callable[[], Tensor]
"""Returns the float32 tensor that a weight's gradient is added to."""


class ComputeCopies:
    """The copies of a model's trained weights of linear layers and of experts.

    The token embedding reads its own float32 weight.
    """

    def __init__(self, module: nn.Module, embedding: nn.Module | None, dtype: torch.dtype) -> None:
        """`embedding`: of the model's tokens."""
        linear = [(o, "weight", o.weight) for o in module.modules() if isinstance(o, nn.Linear)]
        stacked = [(o, *pair) for o in module.modules() for pair in stacked_weights(o).items()]
        self._layers: list[tuple[nn.Module, str, Any]] = [of for of in (*linear, *stacked) if _trained(of[2])]
        self._copies = {weight: _copy(weight, dtype) for _, _, weight in self._layers}
        self._embedding = embedding if _looks_up_plainly(embedding) else None
        self._seen: list[tuple[int, int]] = []
        self._in_place = False

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the layers compute with the copies while the body runs; may be nested."""
        self._refresh()
        if self._in_place:
            yield
            return
        self._use(True)
        try:
            yield
        finally:
            self._use(False)

    def clear(self) -> None:
        """Forget the gradients that no weight has got yet."""
        for copy in self._copies.values():
            copy.grad = None

    def _use(self, on: bool) -> None:
        self._in_place = on
        for owner, name, weight in self._layers:
            owner._parameters[name] = self._copies[weight] if on else weight
        if self._embedding is not None and on:
            self._embedding.forward = partial(_look_up, self._embedding)
        elif self._embedding is not None:
            del self._embedding.forward

    @torch.no_grad()
    def _refresh(self) -> None:
        """Copy the weights where they have changed since the last time."""
        weights = list(self._copies)
        state = [(p._version, p.data_ptr()) for p in weights]
        if state == self._seen:
            return
        for weight, copy in self._copies.items():
            if copy.device != weight.device:
                copy.data = copy.data.to(weight.device)
        torch._foreach_copy_(list(self._copies.values()), weights)
        self._seen = state


def gradient_target_of(weight: Tensor) -> GradientTarget | None:
    """The target of a copy; None for any other tensor."""
    return getattr(weight, "gradient_target", None)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a [n, k] @ b [k, m] to `total` f32 [n, m]; on a GPU in one kernel, without rounding the product."""
    if total.is_cuda and a.dtype == b.dtype != torch.float32 and hasattr(torch.ops.aten.addmm, "dtype_out"):
        torch.ops.aten.addmm.dtype_out(total, a, b, torch.float32, out=total)
    else:
        total += a @ b


def _looks_up_plainly(embedding: Any) -> bool:
    """Whether a token embedding is trained, and gives rows of its weight and nothing else."""
    plain = type(embedding) is nn.Embedding and embedding.max_norm is None and not embedding.scale_grad_by_freq
    return plain and _trained(embedding.weight)


def _trained(weight: Tensor) -> bool:
    return weight.requires_grad and weight.dtype == torch.float32


def _copy(weight: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    copy: Any = nn.Parameter(torch.empty_like(weight, dtype=dtype))
    copy.gradient_target = lambda: _gradient(weight)
    copy.register_post_accumulate_grad_hook(lambda leaf: _hand_over(leaf, weight))
    return copy


def _gradient(weight: nn.Parameter) -> Tensor:
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad


def _hand_over(copy: Tensor, weight: nn.Parameter) -> None:
    if copy.grad is None:  # the layer added it already
        return
    if weight.grad is None:
        weight.grad = copy.grad.float()
    else:
        weight.grad.add_(copy.grad)
    copy.grad = None


def _look_up(embedding: Any, input: Tensor) -> Tensor:
    """The forward of a token embedding that adds its gradient to `.grad` itself: f32 [..., H] of token ids [...]."""
    found: Tensor = _Embedded.apply(input, embedding.weight, embedding.padding_idx)
    return found


class _Embedded(torch.autograd.Function):
    """Rows of a float32 matrix; the gradient is added to the `.grad` of the matrix."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: nn.Parameter, padding: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight, ctx.padding = weight, padding
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        (ids,) = ctx.saved_tensors
        ids, gradient = ids.flatten(), gradients[0].flatten(0, -2)
        if ctx.padding is not None:
            gradient = gradient.masked_fill((ids == ctx.padding)[:, None], 0.0)
        # On a GPU index_add_ adds to one row in any order, so each row must occur once.
        _gradient(ctx.weight).index_add_(0, *(summed(ids, gradient) if gradient.is_cuda else (ids, gradient)))
        return None, None, None


def summed(ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(ids [N], rows [N, H]) with the sum of the rows of each id, once; zeros for id 0 fill up to N.

    No size is read from the device.
    """
    order = ids.argsort(stable=True)
    ordered = ids[order]
    ranks = (ordered.diff(prepend=ordered[:1]) != 0).cumsum(0)
    rank_of = torch.empty_like(ids).scatter_(0, order, ranks)
    sums = torch.ops.aten.embedding_dense_backward(rows, rank_of, len(ids), -1, False)
    return torch.zeros_like(ids).scatter_(0, ranks, ordered), sums
