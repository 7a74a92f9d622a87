"""Policy losses per token; `aggregate.token_weights` averages them.

All take `(logprobs, old_logprobs, advantages)`, f32 [T] each; only the first has a gradient. Further inputs are
keyword-only parameters. They return (loss f32 [T], to be minimised; diagnostics, each [T] and detached):
`ratio`; `clipped`, 1 where a clip acts; `clipped_dual`, 1 where the dual clip does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.algorithms.losses.clipped import Details, ppo_clip_loss
from agentrl.algorithms.own import checked_column
from agentrl.algorithms.segments import Total, sequence_of, sum_by, unchanged
from agentrl.core.contracts import keywords_of
from agentrl.core.errors import UserError
from agentrl.core.points import POLICY_LOSSES
from agentrl.core.registry import Entry

__all__ = ["KEY", "POLICY_LOSSES", "Details", "OptimizerStep", "PolicyLoss", "bind_loss", "ppo_clip_loss"]

KEY = "actor.policy_loss.loss_mode"


@dataclass(frozen=True)
class OptimizerStep:
    """Sizes of the mini-batch of an optimizer step, over which the loss is averaged."""

    tokens: int
    """Model tokens."""
    sequences: int
    """Sequences with model tokens."""
    norm: float = 1.0
    """The divisor of seq-mean-token-sum-norm."""

    @classmethod
    def of(cls, mask: Tensor, cu_seqlens: Tensor, norm: float = 1.0, total: Total = unchanged) -> "OptimizerStep":
        """The sizes of a mini-batch: `mask` bool [T], `cu_seqlens` int32 [B+1]; `total` sums over its parts."""
        made = sum_by(mask.long(), sequence_of(cu_seqlens), cu_seqlens.numel() - 1)
        tokens, sequences = total(torch.stack([made.sum(), (made > 0).sum()])).tolist()
        return cls(tokens, sequences, norm)


@dataclass(frozen=True)
class PolicyLoss:
    """A loss with its settings."""

    name: str
    options: dict[str, Any]
    entry: Entry[Callable[..., Any]]

    def __call__(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, mask: Tensor, **given: Any
    ) -> tuple[Tensor, Details]:
        """(loss f32 [T], diagnostics) of whole sequences, `mask` bool [T] and `cu_seqlens` int32 [B+1]. `chosen` bool
        [T] as `choose` gave it.

        A function of the user's own may read more: `weights` f32 [T], each token's share of the loss; `importance`
        f32 [T] or None, the importance weights, which it then multiplies itself; `step`.
        """
        unknown = dict.fromkeys(("chosen", "weights", "importance", "step"))
        given = self.options | unknown | given | {"mask": mask}
        wanted, where = _read_by(self.entry.value, given), f"{KEY}={self.name}"
        result = self.entry.call(where, logprobs, old_logprobs, advantages, **wanted)
        losses, details = result if isinstance(result, tuple) else (result, {})
        if self.entry.built_in:
            return losses, details
        losses = checked_column(losses, logprobs, mask, where=where, what="losses")
        if logprobs.requires_grad and not losses.requires_grad:
            raise UserError(f"{where}: its losses have no gradient; compute them from logprobs")
        return losses, dict(details)

    @property
    def corrects(self) -> bool:
        """Whether it multiplies the importance weights itself."""
        return "importance" in keywords_of(self.entry.value)

    @property
    def reads_sizes(self) -> bool:
        """Whether it may read how large the mini-batch is; one of the user's own may do anything."""
        return not self.entry.built_in or bool({"weights", "step"} & keywords_of(self.entry.value))

    @property
    def chooses(self) -> bool:
        """Whether it singles out tokens of a mini-batch, and so needs the log-probs from before the step."""
        return "choose" in self.entry.marks

    def choose(self, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
        """The tokens of a whole mini-batch that it singles out: bool [T]. Chance comes from the CPU `generator`."""
        function = self.entry.marks["choose"]
        given = self.options | {"generator": generator}
        chosen: Tensor = function(old_logprobs, advantages, mask, **_read_by(function, given))
        return chosen

    def aggregation(self, loss_agg_mode: str | None) -> str:
        """`loss_agg_mode`, or the one that is part of the loss's definition; where it is None, the loss's usual one."""
        by_sequence = self.entry.marks.get("by_sequence")
        if by_sequence is True or (by_sequence and loss_agg_mode is None):
            return "seq-mean-token-mean"
        return loss_agg_mode or "token-mean"


def bind_loss(name: str, **options: Any) -> PolicyLoss:
    """The loss `name`: built in, registered, or a function that a path names. `options`: low, high, c, config, and
    those of POLICY_LOSS_OPTIONS, of which it takes those it reads. Raises UserError for an unknown name, and for a
    function that does not keep the contract."""
    return PolicyLoss(name, options, POLICY_LOSSES.entry(name, KEY))


def _read_by(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in keywords_of(function) if name in given}
