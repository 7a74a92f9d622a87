"""The algorithms: pure functions over packed tensors, without I/O and without configuration objects.

T tokens are in one row; `cu_seqlens` int32 [B+1] has the bounds of B sequences. Entry t of every [T] tensor belongs to
token t itself: `logprobs[t]` is log p(token t | the tokens before it in its sequence), 0 for a sequence's first.
"""

from agentrl.algorithms.advantages import ADVANTAGES, estimate
from agentrl.algorithms.losses import POLICY_LOSSES, bind_loss

__all__ = ["ADVANTAGES", "POLICY_LOSSES", "bind_loss", "estimate"]
