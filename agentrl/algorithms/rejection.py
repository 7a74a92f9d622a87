"""Rejection sampling: drop tokens that are too unlikely, or too likely, under the trainer's policy.

Two spellings; both take bounds as a number `u` or as `"l_u"`:
- `token`, `sequence`, `geometric` bound the ratio p(trainer) / p(engine) of a token, or the product or the geometric
  mean of a sequence's ratios, to [l, u]; `u` alone means [1 / u, u];
- verl's `<level>_<measure>`, one or a comma-separated list; all must hold. With x = log p(trainer) / p(engine):
  k1 is -x, k2 is x^2 / 2, k3 is exp(x) - 1 - x, of a `token`, or as `seq_sum`, `seq_mean` or `seq_max` of a sequence.
  The bounds of k1 apply to exp(k1), the inverse of the ratio; k2 and k3 have one upper bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, log

import torch
from torch import Tensor

from agentrl.algorithms.ratios import MAX_LOG_RATIO
from agentrl.algorithms.segments import sequence_mean, sequence_of, sum_by
from agentrl.core.errors import UserError

KEY = "algorithm.rollout_correction.rollout_rs"


@dataclass(frozen=True)
class Criterion:
    """A token is kept where its measure is within the bounds."""

    level: str
    """token, seq_sum, seq_mean or seq_max."""
    measure: str
    """k1, k2 or k3."""
    lower: float = -inf
    upper: float = inf


RATIOS = {
    "token": Criterion("token", "k1"),
    "sequence": Criterion("seq_sum", "k1"),
    "geometric": Criterion("seq_mean", "k1"),
}
VERL = {
    f"{level}_{measure}": Criterion(level, measure)
    for level in ("token", "seq_sum", "seq_mean", "seq_max")
    for measure in ("k1", "k2", "k3")
    if (level, measure) != ("seq_max", "k1")
}
OPTIONS = RATIOS | VERL
DEFAULT_RATIO = 2.0


def bounds_of(threshold: str | float) -> tuple[float | None, float]:
    """(lower bound or None, upper bound) of a number, or of text such as "0.5_2.0". Raises UserError."""
    lower, _, upper = str(threshold).strip().rpartition("_")
    try:
        low, high = float(lower) if lower else None, float(upper)
    except ValueError:
        raise UserError(f"threshold {threshold!r} is no number, and no lower_upper such as 0.5_2.0") from None
    if not 0 < (high if low is None else low) <= high:
        raise UserError(f"threshold {threshold!r}: bounds are over 0, the lower one first, such as 0.5_2.0")
    return low, high


def criteria_of(
    options: str | None, threshold: str | float | None = None, lower: float | None = None
) -> tuple[Criterion, ...]:
    """The criteria that `rollout_rs` and its thresholds name: one threshold for all, or one for each.

    `lower`: the lower bound of a ratio whose threshold is a single number. Raises UserError.
    """
    names = list(dict.fromkeys(name.strip() for name in (options or "").split(",") if name.strip()))
    for name in names:
        if name not in OPTIONS:
            raise UserError(f"{KEY}={name} does not exist; it is one of {', '.join(OPTIONS)}, or several with commas")
    given: Sequence[str | float | None] = [threshold]
    if isinstance(threshold, str):
        given = [part.strip() for part in threshold.split(",") if part.strip()]
    if names and len(given) not in (1, len(names)):
        raise UserError(f"{KEY}_threshold={threshold}: give one threshold, or one for each of {', '.join(names)}")
    given = list(given) * (len(names) if len(given) == 1 else 1)
    return tuple(_criterion(name, one, lower) for name, one in zip(names, given, strict=False))


def kept_by(criteria: Sequence[Criterion], log_ratio: Tensor, mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Whether each model token meets all criteria: bool [T]. `log_ratio` f32 [T], log p(trainer) / p(engine)."""
    x = torch.where(mask, log_ratio, 0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    kept = mask
    for criterion in criteria:
        value = over_level(criterion.level, _measure(criterion.measure, x), mask, cu_seqlens)
        kept = kept & (value >= criterion.lower) & (value <= criterion.upper)
    return kept


def veto_below(least: float) -> Criterion:
    """The criterion by which a sequence goes where one of its ratios is below `least`."""
    return Criterion("seq_max", "k1", upper=-log(least))


def _criterion(name: str, threshold: str | float | None, lower: float | None) -> Criterion:
    found = OPTIONS[name]
    if found.measure != "k1":
        return replace(found, upper=_upper_of(name, threshold))
    low, high = bounds_of(DEFAULT_RATIO if threshold is None else threshold)
    if low is None and high < 1:
        raise UserError(
            f"{KEY}_threshold={threshold}: no ratio lies between its inverse and it; write both bounds, as in 0.5_2.0"
        )
    if low is None:
        low = lower if lower is not None and name in RATIOS else 1 / high
    if name in RATIOS:  # bounds of the ratio, whose logarithm is -k1
        return replace(found, lower=-log(high), upper=-log(low))
    return replace(found, lower=log(low), upper=log(high))


def _upper_of(name: str, threshold: str | float | None) -> float:
    if threshold is None:
        raise UserError(f"{KEY}={name} needs {KEY}_threshold: its greatest value that is kept, 0.01, say")
    low, high = bounds_of(threshold)
    if low is not None:
        raise UserError(f"{KEY}_threshold={threshold}: {name} has one upper bound, 0.01, say")
    return high


def _measure(name: str, x: Tensor) -> Tensor:
    return {"k1": lambda: -x, "k2": lambda: 0.5 * x * x, "k3": lambda: x.exp() - 1 - x}[name]()


def over_level(level: str, values: Tensor, mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The token's value, or on each token its sequence's sum, mean or maximum: [T]."""
    if level == "token":
        return values
    if level == "seq_mean":
        return sequence_mean(values, mask, cu_seqlens)
    owner, n = sequence_of(cu_seqlens), cu_seqlens.numel() - 1
    made = torch.where(mask, values, 0.0)
    if level == "seq_sum":
        return sum_by(made, owner, n)[owner]
    return torch.zeros(n, dtype=made.dtype, device=made.device).scatter_reduce_(0, owner, made, "amax")[owner]
