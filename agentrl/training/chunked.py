"""Log-probs and entropies of given tokens straight from hidden states, without the logits of all tokens at once.

The [N, V] logits exist for one chunk of tokens at a time, in forward and in backward, where they are computed again.
Peak memory is that of a chunk, not of the batch.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Logits held at once: 128 MiB of float32.
CHUNK_LOGITS = 2**25
MIN_CHUNK = 32


class ChunkedLogprobs(torch.autograd.Function):
    """(hidden [N, H], weight [V, H], bias [V] or None, targets int64 [N], 1 / temperature) -> (f32 [N], f32 [N]).

    The first output is log softmax(logits / temperature)[target], the second the entropy of that distribution in
    nats. Softmax runs in float32 whatever the dtype of the head.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        entropy, lse = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for rows in _chunks(len(hidden), len(weight)):
            logits = _logits(hidden[rows], weight, bias, scale)
            lse[rows] = logits.logsumexp(-1)
            logprobs[rows] = logits.gather(-1, targets[rows, None]).squeeze(-1) - lse[rows]
            probs = (logits - lse[rows, None]).exp_()
            entropy[rows] = lse[rows] - torch.linalg.vecdot(probs, logits)
        ctx.save_for_backward(hidden, weight, bias, targets, lse, entropy)
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, lse, entropy = ctx.saved_tensors
        by_logprob, by_entropy = gradients
        if by_logprob is None and by_entropy is None:
            return None, None, None, None, None
        to_hidden, to_weight, to_bias = ctx.needs_input_grad[:3]
        d_hidden = torch.zeros_like(hidden) if to_hidden else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if to_weight else None
        d_bias = torch.zeros_like(bias, dtype=torch.float32) if to_bias else None
        for rows in _chunks(len(hidden), len(weight)):
            logprobs = _logits(hidden[rows], weight, bias, ctx.scale).sub_(lse[rows, None])
            d_logits = _gradient(logprobs, _at(by_logprob, rows), _at(by_entropy, rows), entropy[rows], targets[rows])
            d_logits = d_logits.mul_(ctx.scale).to(weight.dtype)
            if d_hidden is not None:
                d_hidden[rows] = (d_logits @ weight).to(hidden.dtype)
            if d_weight is not None:
                d_weight += d_logits.T @ hidden[rows]
            if d_bias is not None:
                d_bias += d_logits.sum(0, dtype=torch.float32)
        return (
            d_hidden,
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None else d_bias.to(bias.dtype),
            None,
            None,
        )


def _gradient(
    logprobs: Tensor, by_logprob: Tensor | None, by_entropy: Tensor | None, entropy: Tensor, targets: Tensor
) -> Tensor:
    """Gradient [C, V] with respect to the scaled logits whose log softmax is `logprobs`, which it overwrites."""
    probs = logprobs.exp()
    if by_entropy is None:
        gradient = probs.mul_(-_column(by_logprob))
    else:
        # d entropy / d logit_j = -p_j (log p_j + entropy)
        slope = logprobs.add_(entropy[:, None]).mul_(-by_entropy[:, None])
        gradient = probs.mul_(slope if by_logprob is None else slope.sub_(_column(by_logprob)))
    if by_logprob is not None:
        gradient.scatter_add_(1, targets[:, None], by_logprob[:, None])
    return gradient


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Scaled logits [C, V] in float32, free to be overwritten."""
    return F.linear(hidden.to(weight.dtype), weight, bias).float().mul_(scale)


def _chunks(rows: int, vocabulary: int) -> Iterator[slice]:
    size = max(CHUNK_LOGITS // vocabulary, MIN_CHUNK)
    return (slice(i, i + size) for i in range(0, rows, size))


def _at(gradient: Tensor | None, rows: slice) -> Tensor | None:
    return None if gradient is None else gradient[rows]


def _column(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient[:, None]
