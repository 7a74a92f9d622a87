"""Off-policy correction: the engine sampled the tokens, with probabilities slightly unlike the trainer's.

Ratios are p(trainer) / p(engine). All results are detached and 0 off the mask. A sequence's ratio is over its model
tokens, so the split into micro-batches does not change it.
"""

import torch
from torch import Tensor

from agentrl.algorithms.ratios import MAX_LOG_RATIO
from agentrl.algorithms.rejection import over_level
from agentrl.algorithms.segments import Total, sequence_of, sum_by, unchanged

LEVELS = ("token", "sequence")
MODES = ("truncate", "mask")


def importance_weights(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor,
    *,
    level: str,
    cap: float,
    mode: str,
    lower: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Factors of token losses that make their expectation the trainer's (importance sampling).

    The ratio is that of a token, or of all model tokens of its sequence. `truncate` caps it at `cap` (the truncated
    importance sampling of arXiv 1802.01561); `mask` sets ratios outside [`lower`, cap] to 0 (IcePop, arXiv
    2510.18855); `lower` None: 1 / cap.

    `logprobs`, `rollout_logprobs` f32 [T], `mask` bool [T], `cu_seqlens` int32 [B+1]. Returns (weights f32 [T],
    1 where the cap acts, f32 [T]).
    """
    gap = torch.where(mask, logprobs.detach() - rollout_logprobs, 0.0)
    gap = over_level("seq_sum" if level == "sequence" else level, gap, mask, cu_seqlens)
    ratio = gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    least = 1 / cap if lower is None else lower
    outside = (ratio > cap) | ((ratio < least) if mode == "mask" else False)
    weights = torch.where(outside, 0.0, ratio) if mode == "mask" else ratio.clamp(max=cap)
    return weights * mask, (outside & mask).float()


def normalised(weights: Tensor, mask: Tensor, cu_seqlens: Tensor, level: str, total: Total = unchanged) -> Tensor:
    """The weights f32 [T] divided by their mean over model tokens, or over sequences where that is the `level`.

    `total`: sums over the parts of the batch of which these tokens are one.
    """
    if level == "token":
        counted = weights[mask]
    else:
        owner, n = sequence_of(cu_seqlens), cu_seqlens.numel() - 1
        tokens = sum_by(mask.to(weights.dtype), owner, n)
        counted = (sum_by(weights, owner, n) / tokens.clamp(min=1))[tokens > 0]
    mean = total(counted.sum()) / total(counted.new_tensor(counted.numel())).clamp(min=1)
    return weights / mean if mean > SMALLEST_MEAN else weights


# Weights of a smaller mean are all 0.
SMALLEST_MEAN = 1e-8
