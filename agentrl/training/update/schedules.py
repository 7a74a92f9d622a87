"""Learning-rate schedules: which share of the peak learning rate a step has after the warm-up.

A schedule is a function of `progress`, 0 at the end of the warm-up and 1 at the end of training. It names what else it
reads as keywords: `step` and `total` count training steps, the warm-up's included. It gives a share of at least 0, on
the way from the peak rate at 1 to the lowest rate (`min_lr_ratio`) at 0.
"""

from math import cos, isfinite, pi

from agentrl.config.schema import Optim
from agentrl.core.contracts import keywords_of
from agentrl.core.errors import UserError
from agentrl.core.points import LR_SCHEDULES, lr_schedule

KEY = "optim.lr_scheduler_type"


@lr_schedule("constant")
def constant(progress: float) -> float:
    """The peak rate all along."""
    return 1.0


@lr_schedule("linear")
def linear(progress: float) -> float:
    """A straight line down."""
    return 1.0 - progress


@lr_schedule("cosine")
def cosine(progress: float, *, num_cycles: float = 0.5) -> float:
    """A cosine of `num_cycles` periods; 0.5 goes down once."""
    return 0.5 * (1.0 + cos(pi * num_cycles * 2.0 * progress))


@lr_schedule("wsd")
def wsd(progress: float, *, stable_ratio: float = 0.9) -> float:
    """The peak rate for `stable_ratio` of the steps, then a straight line down (WSD, arXiv 2404.06395)."""
    return min((1.0 - progress) / max(1.0 - stable_ratio, 1e-9), 1.0)


def warmup_steps(optim: Optim, total_steps: int) -> int:
    """Warm-up steps; a decimal number up to 1.0 is the share of all steps."""
    steps = optim.lr_warmup_steps
    return int(steps * total_steps if isinstance(steps, float) and steps <= 1 else steps)


def lr_factor(optim: Optim, step: int, total: int) -> float:
    """Share of the peak learning rate at `step` (0-based) of `total`.

    Linear warm-up, whose last step has the full rate, then the schedule down to `min_lr_ratio`. Raises UserError for an
    unknown schedule, and for one of the user's own that fails.
    """
    kind, warmup = optim.lr_scheduler_type, warmup_steps(optim, total)
    entry = LR_SCHEDULES.entry(kind, KEY)
    if step < warmup:
        return (step + 1) / warmup
    progress = min((step - warmup) / max(total - warmup, 1), 1.0)
    options = {"step": step, "total": total, "num_cycles": optim.num_cycles, "stable_ratio": optim.stable_ratio}
    given = {name: options[name] for name in keywords_of(entry.value)}
    share = entry.call(f"{KEY}={kind}", progress, **given)
    if not isinstance(share, int | float) or not isfinite(share):
        raise UserError(f"{KEY}={kind}: it gave {share!r} at progress {progress:g}; return a finite number from 0 on")
    return optim.min_lr_ratio + (1.0 - optim.min_lr_ratio) * max(float(share), 0.0)
