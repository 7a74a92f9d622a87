"""A step and a validation as one line of plain ASCII each: for logs, pipes and terminals that cannot redraw."""

import re
from collections.abc import Mapping

from agentrl.tracking.fields import FIELDS, SUCCESS, Field, duration, figure, share

SCORES = (
    Field("reward", ("rollout/reward_mean",), figure, "reward"),
    Field("success", ("rollout/success",), share, "success", note=SUCCESS),
)
SOURCE = re.compile(r"val/(.+)(?<!/reward)/success")
FAULTS = (
    ("rollout/infra_drops", "dropped"),
    ("rollout/ledger_violations", "LEDGER VIOLATIONS"),
    ("actor/skipped_steps", "SKIPPED UPDATES"),
)


def step_line(step: int, total: int | None, metrics: Mapping[str, float], eta: float | None) -> str:
    """`step  12/120  reward 0.412  success 41.0%  ...  26s  eta 48:10`"""
    width = len(str(total or 0))
    parts = [f"step {step:>{width}}/{total}" if total is not None else f"step {step}"]
    for field in (*SCORES, *FIELDS):
        value = field.value(metrics)
        if field.brief and value is not None:
            parts.append(f"{field.brief} {field.show(value)}")
    parts += [f"{label} {metrics[name]:.0f}" for name, label in FAULTS if metrics.get(name)]
    if metrics.get("rollout/zero_variance_groups", 0.0) >= 1.0:
        parts.append("NO GRADIENT: equal rewards in each group")
    if "time/step" in metrics:
        parts.append(duration(metrics["time/step"]))
    if eta is not None:
        parts.append(f"eta {duration(eta)}")
    return "  ".join(parts)


def validation_line(step: int, metrics: Mapping[str, float]) -> str:
    """`validation at step 10  success 51.2%  reward 0.512  (gsm8k 60.1%, math 42.0%)`"""
    parts = [f"validation at step {step}"]
    if "val/success" in metrics:
        parts.append(f"success {share(metrics['val/success'])}")
    if "val/reward_mean" in metrics:
        parts.append(f"reward {figure(metrics['val/reward_mean'])}")
    if metrics.get("val/infra_drops"):
        parts.append(f"dropped {metrics['val/infra_drops']:.0f} of {metrics['val/trajectories']:.0f}")
    by_source = sources(metrics)
    if len(by_source) > 1:
        parts.append("(" + ", ".join(f"{name} {share(value)}" for name, value in by_source.items()) + ")")
    return "  ".join(parts)


def sources(metrics: Mapping[str, float]) -> dict[str, float]:
    """Success by data source, out of `val/<data_source>/success`."""
    matches = {name: SOURCE.fullmatch(name) for name in metrics}
    return {match[1]: metrics[name] for name, match in matches.items() if match}
