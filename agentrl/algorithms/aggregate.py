"""How token losses become one number: a weight per token, so that the loss is `sum(weights * losses)`.

The weights are computed for the whole mini-batch, so every split into micro-batches sums to the same loss and gradient.
Only model tokens (mask 1) count, in every mode.
"""

from torch import Tensor

from agentrl.algorithms.segments import Total, dense, sequence_of, sum_by, unchanged
from agentrl.core.errors import UserError

LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def token_weights(
    mask: Tensor,
    cu_seqlens: Tensor,
    mode: str,
    *,
    trajectory: Tensor | None = None,
    trajectories: int | None = None,
    norm: float = 1.0,
    total: Total = unchanged,
    relative: bool = False,
) -> Tensor:
    """Weights f32 [T], 0 off the mask. Raises UserError for an unknown mode.

    - token-mean: equal weights of all model tokens (DAPO, arXiv 2503.14476);
    - token-sum: the sum over all model tokens;
    - seq-mean-token-sum: mean over sequences of the sum over their tokens;
    - seq-mean-token-mean: mean over sequences of the mean over their tokens (GRPO, arXiv 2402.03300);
    - seq-mean-token-sum-norm: mean over sequences of the sum over their tokens divided by the constant `norm`
      (Dr.GRPO, arXiv 2503.20783).

    `trajectory` int64 [B]: sequences of one trajectory count as one; None: each counts separately. Sequences
    without a model token do not count. `total`: sums over the parts of a mini-batch of which these tokens are one; all
    parts have the same `trajectories`, a number above those in `trajectory`. `relative`: the weights but for a common
    factor, so that those of a trajectory do not depend on the others.
    """
    if mode not in LOSS_AGG_MODES:
        raise UserError(f"loss_agg_mode {mode!r} does not exist; it is one of {', '.join(LOSS_AGG_MODES)}")
    weights = mask.float()
    if mode == "token-sum" or (relative and mode == "token-mean"):
        return weights
    if mode == "token-mean":
        return weights / total(weights.sum()).clamp(min=1)
    owner = sequence_of(cu_seqlens)
    n = cu_seqlens.numel() - 1
    if trajectory is not None:
        index, n = dense(trajectory) if trajectories is None else (trajectory, trajectories)
        owner = index[owner]
    tokens = total(sum_by(weights, owner, n))
    sequences = 1 if relative else (tokens > 0).sum().clamp(min=1)
    if mode == "seq-mean-token-mean":
        return weights / (sequences * tokens.clamp(min=1)[owner])
    return weights / (sequences * (norm if mode == "seq-mean-token-sum-norm" else 1.0))
