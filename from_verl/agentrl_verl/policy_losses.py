"""Policy losses registered as verl has them, which `actor.policy_loss.loss_mode` then names.

Such a function gets padded rows [N, R], one row a sequence: `old_log_prob`, `log_prob`, `advantages` f32,
`response_mask` int64, `loss_agg_mode`, `config` (the section `actor`), `rollout_is_weights` f32 or None. It returns one
number, or a tuple that begins with it: verl 0.5 has (loss, clip fraction, KL, lower clip fraction), verl 0.7 (loss,
metrics).

The number is a mean over the micro-batch that the function sees, where the gradient needs the micro-batch's part of
the mean over the whole mini-batch. `agg_loss` gives that part by itself, for all arguments; so does a function
that passes `**config.global_batch_info` on to an installed verl's `agg_loss`. Any other mean is multiplied by the
micro-batch's share of the tokens, or of the sequences, as `loss_agg_mode` says.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

import torch
from torch import Tensor

from agentrl.algorithms.losses import Details, OptimizerStep
from agentrl.core.errors import UserError
from agentrl.core.points import POLICY_LOSSES
from agentrl_verl.config_views import ActorConfig
from agentrl_verl.padded import rows_of

Function = Callable[..., Any]

POLICY_LOSS_REGISTRY: dict[str, Function] = {}
"""By name, in verl's shape."""

# verl's names of what agentrl reports under names of its own, or reports anyway.
METRICS = {"actor/pg_clipfrac": "clipped", "actor/pg_clipfrac_lower": "clipped_dual", "actor/ppo_kl": None}
OLDER = ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower")


def register_policy_loss(name: str) -> Callable[[Function], Function]:
    """A decorator that makes a function known to `actor.policy_loss.loss_mode`, before a built-in one of that name."""

    def decorate(function: Function) -> Function:
        POLICY_LOSS_REGISTRY[name] = function
        adopt(name, function)
        return function

    return decorate


def adopt(name: str, function: Function) -> None:
    """Let `actor.policy_loss.loss_mode` find it."""
    POLICY_LOSSES.add(name, PaddedLoss(function), replace=True)


class Whole(Mapping[str, Any]):
    """The mini-batch that a micro-batch belongs to: verl's `global_batch_info`; it knows whether it was used."""

    def __init__(self, step: OptimizerStep) -> None:
        self.step, self.used = step, False
        self.info: dict[str, float] = {"dp_size": 1, "loss_scale_factor": step.norm}
        self.info |= {"batch_num_tokens": step.tokens, "global_batch_size": step.sequences}

    def __getitem__(self, name: str) -> Any:
        self.used = True
        return self.info[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.info)

    def __len__(self) -> int:
        return len(self.info)


_WHOLE: ContextVar[Whole | None] = ContextVar("whole", default=None)


@contextmanager
def part_of(whole: Whole) -> Iterator[None]:
    """Within, `agg_loss` means over the whole mini-batch."""
    token = _WHOLE.set(whole)
    try:
        yield
    finally:
        _WHOLE.reset(token)


def agg_loss(
    loss_mat: Tensor,
    loss_mask: Tensor,
    loss_agg_mode: str,
    dp_size: int = 1,
    batch_num_tokens: Any = None,
    global_batch_size: Any = None,
    loss_scale_factor: Any = None,
) -> Tensor:
    """One number of losses [N, R] over their mask [N, R]. Raises ValueError for an unknown mode.

    Modes: see `agentrl.algorithms.token_weights`. In a registered loss the mean is that of the mini-batch.
    """
    if whole := _WHOLE.get():
        whole.used = True
        dp_size, batch_num_tokens, global_batch_size = 1, whole.step.tokens, whole.step.sequences
        loss_scale_factor = whole.step.norm
    losses = torch.where(loss_mask.bool(), loss_mat, 0.0) * loss_mask
    tokens = loss_mask.sum(-1)
    if loss_agg_mode == "token-mean":
        return losses.sum() / _at_least_one(batch_num_tokens, tokens.sum()) * dp_size
    if loss_agg_mode == "token-sum":
        return losses.sum() * dp_size
    sequences = _at_least_one(global_batch_size, (tokens > 0).sum())
    if loss_agg_mode == "seq-mean-token-sum":
        return losses.sum() / sequences * dp_size
    if loss_agg_mode == "seq-mean-token-mean":
        return (losses.sum(-1) / tokens.clamp(min=1)).sum() / sequences * dp_size
    if loss_agg_mode == "seq-mean-token-sum-norm":
        return losses.sum() / (loss_scale_factor or loss_mask.shape[-1]) / sequences * dp_size
    raise ValueError(f"loss_agg_mode {loss_agg_mode!r} does not exist")


def _at_least_one(given: Any, found: Tensor) -> Any:
    return found.clamp(min=1) if given is None else max(given, 1)


class PaddedLoss:
    """agentrl's contract around a function with verl's. See `agentrl.algorithms.losses`."""

    __name__: ClassVar[str] = "PaddedLoss"

    def __init__(self, function: Function) -> None:
        self.function = function
        parameters = inspect.signature(function).parameters
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self.names = frozenset(parameters)

    def __call__(
        self,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        *,
        mask: Tensor,
        cu_seqlens: Tensor,
        weights: Tensor,
        importance: Tensor | None,
        step: OptimizerStep,
        config: Any,
    ) -> tuple[Tensor, Details]:
        """(loss f32 [T] whose sum by `weights` is the function's number, its metrics)."""
        share = weights[mask].sum()
        if not share > 0:  # a pass in which nobody is scored
            return logprobs * 0.0, {}
        rows, whole = rows_of(mask, cu_seqlens), Whole(step)
        mode, response_mask = config.loss_agg_mode or "token-mean", rows.pad(mask.long())
        given = {
            "old_log_prob": rows.pad(old_logprobs),
            "log_prob": rows.pad(logprobs),
            "advantages": rows.pad(advantages),
            "response_mask": response_mask,
            "loss_agg_mode": mode,
            "config": ActorConfig(config, global_batch_info=whole, loss_agg_mode=mode),
            "rollout_is_weights": None if importance is None else rows.pad(importance),
        }
        with part_of(whole):
            said = self.function(**{k: v for k, v in given.items() if self.takes_any or k in self.names})
        loss, metrics = _read(said)
        if not whole.used and mode != "token-sum":
            here = OptimizerStep.of(mask, cu_seqlens)
            loss = loss * (here.tokens / step.tokens if mode == "token-mean" else here.sequences / step.sequences)
        details = {name: torch.full_like(advantages, value) for name, value in metrics.items()}
        return mask * (loss / share), details


def _read(said: Any) -> tuple[Tensor, dict[str, float]]:
    """(the number, its metrics under agentrl's names) of what a function returned."""
    loss, *rest = said if isinstance(said, tuple | list) else (said,)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise UserError(f"its loss is {got}; return one number: agg_loss(loss_mat=..., loss_mask=response_mask, ...)")
    metrics = rest[0] if len(rest) == 1 and isinstance(rest[0], Mapping) else dict(zip(OLDER, rest, strict=False))
    numbers = {METRICS.get(name, name): _number(value) for name, value in metrics.items() if _is_number(value)}
    return loss.reshape(()), {name: value for name, value in numbers.items() if name}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)
