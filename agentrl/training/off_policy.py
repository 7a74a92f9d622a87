"""The off-policy correction of a batch, as `algorithm.rollout_correction` names it.

Importance weights need the log-probs of one sequence alone, so they are made in the forward pass of the update. What
looks at more, rejection and normalised weights, is settled for the batch first: what is rejected leaves the mask, and
with it every mean, before anything is averaged.
"""

from dataclasses import replace

import torch
from torch import Tensor

from agentrl.algorithms.correction import importance_weights, normalised
from agentrl.algorithms.rejection import bounds_of, criteria_of, free_of_veto, kept_by
from agentrl.config.schema import RolloutCorrection
from agentrl.training.batch import Batch


def loss_has_ratio(rollout_correction: RolloutCorrection) -> bool:
    """Whether the loss's own ratio corrects, and importance weights would count twice."""
    return rollout_correction.bypass_mode and rollout_correction.loss_type == "ppo_clip"


def needs_batch_correction(rollout_correction: RolloutCorrection) -> bool:
    """Whether something is settled before the update's forward passes, and so asks for log-probs from before it."""
    weighs = rollout_correction.rollout_is is not None and not loss_has_ratio(rollout_correction)
    rejects = rollout_correction.rollout_rs is not None or rollout_correction.rollout_token_veto_threshold is not None
    return rejects or (weighs and rollout_correction.rollout_is_batch_normalize)


def correct_batch(batch: Batch, logprobs: Tensor, rollout_correction: RolloutCorrection) -> Batch:
    """The batch without what is rejected, and with its importance weights; `logprobs` f32 [T] are the trainer's.

    The weights come from all tokens, the rejected ones too, as in verl.
    """
    mask, bounds = batch.mask, batch.cu_seqlens
    gap = torch.where(mask, logprobs.detach() - batch.rollout_logprobs, 0.0)
    criteria = criteria_of(
        rollout_correction.rollout_rs,
        rollout_correction.rollout_rs_threshold,
        rollout_correction.rollout_rs_threshold_lower,
    )
    kept, veto = kept_by(criteria, gap, mask, bounds), rollout_correction.rollout_token_veto_threshold
    if veto is not None:
        kept = kept & free_of_veto(veto, gap, mask, bounds)
    found = replace(batch, mask=kept, rejected=mask & ~kept)
    found.importance, found.capped = batch_importance(batch, logprobs, rollout_correction)
    return found


def batch_importance(
    batch: Batch, logprobs: Tensor, rollout_correction: RolloutCorrection
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """(importance weights f32 [T], whether the cap acted f32 [T]); None where the loss has none."""
    level = rollout_correction.rollout_is
    if level is None or loss_has_ratio(rollout_correction):
        return None, None
    lower, cap = bounds_of(rollout_correction.rollout_is_threshold)
    mode = "mask" if lower is not None else rollout_correction.rollout_is_mode
    columns = logprobs, batch.rollout_logprobs, batch.mask, batch.cu_seqlens
    weights, capped = importance_weights(*columns, level=level, cap=cap, mode=mode, lower=lower)
    if rollout_correction.rollout_is_batch_normalize:
        weights = normalised(weights, batch.mask, batch.cu_seqlens, level)
    return weights, capped


def micro_batch_importance(
    micro: Batch, logprobs: Tensor, rollout_correction: RolloutCorrection
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """As `weights_of`, of a micro-batch: those that were settled before, where they were."""
    if micro.importance is not None and micro.capped is not None:
        return micro.importance, micro.capped
    return batch_importance(micro, logprobs, rollout_correction)
