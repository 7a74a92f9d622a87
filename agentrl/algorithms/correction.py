"""Off-policy correction: tokens were drawn by the engine, whose probabilities are not quite the trainer's."""

import torch
from torch import Tensor

from agentrl.algorithms.policy_loss import MAX_LOG_RATIO
from agentrl.algorithms.segments import sequence_of, sum_by

LEVELS = ("token", "sequence")
MODES = ("truncate", "mask")


def importance_weights(
    logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, cu_seqlens: Tensor, *, level: str, cap: float, mode: str
) -> tuple[Tensor, Tensor]:
    """What each token's loss is multiplied by so that its expectation is the trainer's (importance sampling).

    The ratio is p(trainer) / p(engine), of a token, or of all model tokens of its sequence. `truncate` cuts it at
    `cap` (the truncated importance sampling of arXiv 1802.01561); `mask` drops what lies outside [1 / cap, cap].

    `logprobs`, `rollout_logprobs` f32 [T], `mask` bool [T], `cu_seqlens` int32 [B+1]. Gives (weights f32 [T],
    whether the cap acted, f32 [T]), both detached, 0 off the mask.
    """
    gap = torch.where(mask, logprobs.detach() - rollout_logprobs, 0.0)
    if level == "sequence":
        owner = sequence_of(cu_seqlens)
        gap = sum_by(gap, owner, cu_seqlens.numel() - 1)[owner]
    ratio = gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    outside = (ratio > cap) | ((ratio < 1 / cap) if mode == "mask" else False)
    weights = torch.where(outside, 0.0, ratio) if mode == "mask" else ratio.clamp(max=cap)
    return weights * mask, (outside & mask).float()
