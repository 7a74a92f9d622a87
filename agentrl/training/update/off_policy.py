"""The off-policy correction of a batch, by `algorithm.rollout_correction`.

Importance weights need the log-probs of one sequence only, so the update computes them per micro-batch. Rejection and
normalised weights need the whole batch, so they come first: rejected tokens leave the mask, and so every mean.
"""

from dataclasses import replace

import torch
from torch import Tensor

from agentrl.algorithms.correction import importance_weights, normalised
from agentrl.algorithms.rejection import bounds_of, criteria_of, kept_by, veto_below
from agentrl.algorithms.segments import Total, unchanged
from agentrl.config.schema import RolloutCorrection
from agentrl.training.batches.batch import Batch


def loss_has_ratio(rollout_correction: RolloutCorrection) -> bool:
    """Whether the loss's ratio already corrects, so that importance weights would count twice."""
    return rollout_correction.bypass_mode and rollout_correction.loss_type == "ppo_clip"


def needs_batch_correction(rollout_correction: RolloutCorrection) -> bool:
    """Whether the whole batch is corrected before the update, which needs its log-probs."""
    weighs = rollout_correction.rollout_is is not None and not loss_has_ratio(rollout_correction)
    rejects = rollout_correction.rollout_rs is not None or rollout_correction.rollout_token_veto_threshold is not None
    return rejects or (weighs and rollout_correction.rollout_is_batch_normalize)


def correct_batch(
    batch: Batch, logprobs: Tensor, rollout_correction: RolloutCorrection, total: Total = unchanged
) -> Batch:
    """The batch without rejected tokens and with importance weights; `logprobs` f32 [T] are the trainer's.

    Rejected tokens count in the weights, as in verl. `total`: sums over the shares of the batch.
    """
    mask, bounds = batch.mask, batch.cu_seqlens
    gap = torch.where(mask, logprobs.detach() - batch.rollout_logprobs, 0.0)
    thresholds = rollout_correction.rollout_rs_threshold, rollout_correction.rollout_rs_threshold_lower
    criteria = criteria_of(rollout_correction.rollout_rs, *thresholds)
    if (veto := rollout_correction.rollout_token_veto_threshold or 0.0) > 0:
        criteria += (veto_below(veto),)
    kept = kept_by(criteria, gap, mask, bounds)
    found = replace(batch, mask=kept, rejected=mask & ~kept)
    found.importance, found.capped = batch_importance(batch, logprobs, rollout_correction, total)
    return found


def batch_importance(
    batch: Batch, logprobs: Tensor, rollout_correction: RolloutCorrection, total: Total = unchanged
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """(importance weights f32 [T], 1 where the cap acts f32 [T]), those that the batch has already; None without
    weights."""
    if batch.importance is not None and batch.capped is not None:
        return batch.importance, batch.capped
    level = rollout_correction.rollout_is
    if level is None or loss_has_ratio(rollout_correction):
        return None, None
    lower, cap = bounds_of(rollout_correction.rollout_is_threshold)
    mode = "mask" if lower is not None else rollout_correction.rollout_is_mode
    columns = logprobs, batch.rollout_logprobs, batch.mask, batch.cu_seqlens
    weights, capped = importance_weights(*columns, level=level, cap=cap, mode=mode, lower=lower)
    if rollout_correction.rollout_is_batch_normalize:
        weights = normalised(weights, batch.mask, batch.cu_seqlens, level, total)
    return weights, capped
