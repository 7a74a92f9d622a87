"""Off-policy correction: tokens were drawn by the engine, whose probabilities are not quite the trainer's.

Ratios are p(trainer) / p(engine). All results are detached and 0 or False off the mask; a sequence's ratio is over
its model tokens, so no cut into micro-batches changes it.
"""

import torch
from torch import Tensor

from agentrl.algorithms.ratios import MAX_LOG_RATIO
from agentrl.algorithms.segments import sequence_mean, sequence_of, sum_by

LEVELS = ("token", "sequence")
MODES = ("truncate", "mask")
REJECTION_LEVELS = (*LEVELS, "geometric")


def importance_weights(
    logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, cu_seqlens: Tensor, *, level: str, cap: float, mode: str
) -> tuple[Tensor, Tensor]:
    """What each token's loss is multiplied by so that its expectation is the trainer's (importance sampling).

    The ratio is that of a token, or of all model tokens of its sequence. `truncate` cuts it at `cap` (the truncated
    importance sampling of arXiv 1802.01561); `mask` drops what lies outside [1 / cap, cap].

    `logprobs`, `rollout_logprobs` f32 [T], `mask` bool [T], `cu_seqlens` int32 [B+1]. Gives (weights f32 [T],
    whether the cap acted, f32 [T]).
    """
    ratio = _ratio(logprobs, rollout_logprobs, mask, cu_seqlens, level)
    outside = (ratio > cap) | ((ratio < 1 / cap) if mode == "mask" else False)
    weights = torch.where(outside, 0.0, ratio) if mode == "mask" else ratio.clamp(max=cap)
    return weights * mask, (outside & mask).float()


def rejection_mask(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor,
    *,
    level: str | None,
    upper: float,
    lower: float,
    veto: float | None,
) -> Tensor:
    """Which tokens may teach, bool [T] (rejection sampling, as verl's rollout correction has it).

    `level` token drops tokens, sequence and geometric whole sequences, whose ratio lies outside [`lower`, `upper`]:
    the product of the tokens' ratios, or their geometric mean. `veto` drops every sequence with a token whose ratio
    is below it, however its other tokens fare. None: not at all. What is dropped keeps its share in the mean.
    """
    kept = mask
    if level is not None:
        ratio = _ratio(logprobs, rollout_logprobs, mask, cu_seqlens, level)
        kept = kept & (ratio >= lower) & (ratio <= upper)
    if veto is not None:
        owner = sequence_of(cu_seqlens)
        hopeless = (_ratio(logprobs, rollout_logprobs, mask, cu_seqlens, "token") < veto) & mask
        kept = kept & (sum_by(hopeless.long(), owner, cu_seqlens.numel() - 1) == 0)[owner]
    return kept


def _ratio(logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, cu_seqlens: Tensor, level: str) -> Tensor:
    """The ratio of each token, or of its sequence: f32 [T]."""
    gap = torch.where(mask, logprobs.detach() - rollout_logprobs, 0.0)
    if level == "sequence":
        owner = sequence_of(cu_seqlens)
        gap = sum_by(gap, owner, cu_seqlens.numel() - 1)[owner]
    if level == "geometric":
        gap = sequence_mean(gap, mask, cu_seqlens)
    return gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
