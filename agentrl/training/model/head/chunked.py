"""Log-probs and entropies of given tokens from hidden states, without the logits of all tokens at once.

The [N, V] logits exist for one chunk of tokens at a time. Those of as many tokens as the caller says stay for the
backward pass, in the dtype of the head; backward computes the others again. On a GPU one kernel reads a chunk, and
another computes its gradient. A comparison with another model needs the logits of both for the same tokens, so its
chunks are smaller.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from agentrl.training.model.compute_copies import add_product, gradient_target_of
from agentrl.training.model.head.float32_head import product

# Logits in memory at once: 128 MiB of float32 on a CPU, 512 MiB of bfloat16 on a GPU.
CHUNK_LOGITS = {"cpu": 2**25, "cuda": 2**28}
MIN_CHUNK = 32
# With a comparison a chunk is this many times smaller: PyTorch's operations make float32 copies.
COMPARED = 8

Compare = Callable[[Tensor, Tensor], Tensor]
"""(logits f32 [C, V] divided by the temperature, their tokens int64 [C]) -> f32 [M, C]: figures of the tokens."""


def joined(*compares: Compare | None) -> Compare | None:
    """One comparison with the figures of several, in their order; None where there are none."""
    found = [compare for compare in compares if compare is not None]
    return (lambda logits, tokens: torch.cat([compare(logits, tokens) for compare in found])) if found else None


class ChunkedLogprobs(torch.autograd.Function):
    """(hidden [N, H], weight [V, H], bias [V] or None, targets int64 [N], 1 / temperature[, kernels on a GPU[, whether
    products are in float32[, tokens whose logits stay for the backward pass[, a comparison, tokens int64 [N][, first
    tokens that have a gradient (None: all)[, the last columns [V, r] of a weight whose others are frozen]]]]]]])
    -> (f32 [N], f32 [N]).

    The first output is log softmax(logits / temperature)[target], the second the entropy of that distribution in
    nats. Softmax runs in float32 for every dtype of the head. With a comparison its figures follow, f32 [N] each;
    those that depend on the logits have a gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        scale: float,
        kernels: str = "triton",
        wide: bool = False,
        keep: int = 0,
        compare: Compare | None = None,
        tokens: Tensor | None = None,
        moved: int | None = None,
        lora: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        logprobs = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        entropy, lse = torch.empty_like(logprobs), torch.empty_like(logprobs)
        figures: list[Tensor] = []
        row_statistics, _ = _kernels(hidden, kernels)
        kept: dict[int, Tensor] = {}
        for rows in _chunks(len(hidden), weight, compare, wide):
            logits = logits_of(rows, hidden, weight, bias, wide=wide)
            if min(rows.stop, len(hidden)) <= keep:
                kept[rows.start] = logits
                # PyTorch's operations overwrite float32 logits.
                logits = logits.clone() if row_statistics is _row_statistics else logits
            if compare is not None and tokens is not None:
                figures.append(compare(logits.float() * scale, tokens[rows]))
            lse[rows], logprobs[rows], entropy[rows] = row_statistics(logits, targets[rows], scale)
        ctx.save_for_backward(hidden, weight, bias, targets, lse, entropy, tokens)
        ctx.compare = compare
        ctx.scale, ctx.kernels, ctx.wide, ctx.kept = scale, kernels, wide, kept
        ctx.moved = len(hidden) if moved is None else moved
        ctx.target = gradient_target_of(weight if lora is None else lora)
        ctx.first = 0 if lora is None else weight.shape[1] - lora.shape[1]
        ctx.set_materialize_grads(False)
        return logprobs, entropy, *(torch.cat(figures, 1) if figures else ())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, lse, entropy, tokens = ctx.saved_tensors
        grad_logprobs, grad_entropy, *others = gradients
        no_gradients = [None] * 8
        compared = any(gradient is not None for gradient in others)
        if grad_logprobs is None and grad_entropy is None and not compared:
            return None, None, None, *no_gradients, None
        grad_logprobs = torch.zeros_like(lse) if grad_logprobs is None else grad_logprobs
        to_hidden, to_weight, to_bias = ctx.needs_input_grad[:3]
        d_hidden = torch.zeros_like(hidden) if to_hidden else None
        to_weight |= any(ctx.needs_input_grad[11:])
        zeros = partial(torch.zeros_like, weight[:, ctx.first :], dtype=torch.float32)
        d_weight = (ctx.target or zeros)() if to_weight else None  # f32 [V, H]; of the last columns
        d_bias = torch.zeros_like(bias, dtype=torch.float32) if to_bias else None
        _, logits_gradient = _kernels(hidden, ctx.kernels)
        times = product if ctx.wide else torch.matmul
        for rows in _chunks(ctx.moved, weight, ctx.compare, ctx.wide):
            kept: Tensor | None = ctx.kept.pop(rows.start, None)
            logits = logits_of(rows, hidden, weight, bias, wide=ctx.wide) if kept is None else kept
            # Before `logits_gradient`, which overwrites the logits.
            slope = _slope(ctx, logits, tokens[rows], [_at(g, rows) for g in others]) if compared else None
            incoming = grad_logprobs[rows], _at(grad_entropy, rows)
            d_logits = logits_gradient(logits, targets[rows], lse[rows], entropy[rows], *incoming, ctx.scale)
            if slope is not None:
                d_logits += slope
            if d_hidden is not None:
                d_hidden[rows] = times(d_logits, weight).to(hidden.dtype)
            if d_weight is not None and ctx.target is not None and not ctx.wide:
                add_product(d_weight, d_logits.T, hidden[rows, ctx.first :].to(weight.dtype))
            elif d_weight is not None:
                d_weight += times(d_logits.T, hidden[rows, ctx.first :].to(weight.dtype))
            if d_bias is not None:
                d_bias += d_logits.sum(0, dtype=torch.float32)
        made = None if d_weight is None or ctx.target is not None else d_weight.to(weight.dtype)
        d_bias = None if d_bias is None else d_bias.to(bias.dtype)
        return d_hidden, None if ctx.first else made, d_bias, *no_gradients, made if ctx.first else None


def _kernels(hidden: Tensor, backend: str) -> tuple[Any, Any]:
    """(row_statistics, logits_gradient) for the device of `hidden`; `backend`: triton or torch."""
    if backend == "torch" or not hidden.is_cuda:
        return _row_statistics, _logits_gradient
    from agentrl.training.model.head import head_kernels

    return head_kernels.row_statistics, head_kernels.logits_gradient


def _row_statistics(logits: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """(log of softmax's denominator, log-prob of the target, entropy), f32 [C] each; overwrites f32 logits."""
    logits = logits.float().mul_(scale)
    lse = logits.logsumexp(-1)
    logprobs = logits.gather(-1, targets[:, None]).squeeze(-1) - lse
    probs = (logits - lse[:, None]).exp_()
    return lse, logprobs, lse - torch.linalg.vecdot(probs, logits)


def _logits_gradient(
    logits: Tensor,
    targets: Tensor,
    lse: Tensor,
    entropy: Tensor,
    grad_logprobs: Tensor,
    grad_entropy: Tensor | None,
    scale: float,
) -> Tensor:
    """Gradient [C, V] with respect to the logits, in their dtype; overwrites f32 logits."""
    dtype = logits.dtype
    logprobs = logits.float().mul_(scale).sub_(lse[:, None])
    probs = logprobs.exp()
    slope = -grad_logprobs[:, None]
    if grad_entropy is not None:
        # d entropy / d logit_j = -p_j (log p_j + entropy)
        slope = logprobs.add_(entropy[:, None]).mul_(-grad_entropy[:, None]).add_(slope)
    gradient = probs.mul_(slope).scatter_add_(1, targets[:, None], grad_logprobs[:, None])
    return gradient.mul_(scale).to(dtype)


def _slope(ctx: Any, logits: Tensor, tokens: Tensor, gradients: list[Tensor | None]) -> Tensor:
    """Gradient [C, V] of a comparison's figures with respect to the logits, in their dtype."""
    with torch.enable_grad():
        own = (logits.float() * ctx.scale).detach().requires_grad_()
        figures = ctx.compare(own, tokens)
    incoming = torch.stack([torch.zeros_like(figures[0]) if g is None else g for g in gradients])
    (slope,) = torch.autograd.grad(figures, own, incoming)
    return slope.mul_(ctx.scale).to(logits.dtype)


def logits_of(rows: slice | Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, *, wide: bool) -> Tensor:
    own = hidden[rows].to(weight.dtype)
    if not wide:
        return F.linear(own, weight, bias)
    logits = product(own, weight.T)
    return logits if bias is None else logits.add_(bias)


def _chunks(count: int, weight: Tensor, compare: Compare | None, wide: bool) -> Iterator[slice]:
    most = CHUNK_LOGITS["cuda" if weight.is_cuda else "cpu"] // (COMPARED if compare else 1 + wide)
    size = max(most // len(weight), MIN_CHUNK)
    return (slice(i, i + size) for i in range(0, count, size))


def _at(gradient: Tensor | None, rows: slice) -> Tensor | None:
    return None if gradient is None else gradient[rows]
