"""Metrics of a batch of trajectories, as flat names and floats.

Invariants:
- pure: nothing is read but the trajectories, and the order they come in does not change a single bit;
- a figure that is undefined (a mean of nothing) is left out, never reported as 0 or NaN;
- wall-clock figures live under `perf/` (and `time/`, see `phases`), so that all other names repeat exactly
  when a run repeats.
"""

import math
from collections import Counter
from collections.abc import Sequence
from numbers import Real
from statistics import fmean
from typing import Any, get_args

import numpy as np

from agentrl.core.grouping import grouped
from agentrl.trajectory.trajectory import Finish, Outcome, ToolCallRecord, Trajectory

Metrics = dict[str, float]

PHASES = ("build", "start", "set_up", "run", "verify")
"""Phases of a trajectory with a container."""

OTHER_TOOLS = "other"
"""Stands for names that no call got through to: a model may invent any number of them."""
SAME_REWARD = 1e-6
"""Rewards closer than this are equal: their difference teaches nothing."""


def rollout_metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """All figures of a training batch: `rollout/`, `finish/`, `tools/`, `tasks/`, `reward/` and `perf/`."""
    return {
        **_under("rollout", _figures(trajectories)),
        **_under("finish", _finishes(trajectories)),
        **_under("tools", _tools(trajectories)),
        **_under("tasks", _tasks(trajectories)),
        **_under("reward", _extras(trajectories)),
        **_under("perf", _timings(trajectories)),
    }


def validation_metrics(trajectories: Sequence[Trajectory], prefix: str = "val", **further: float) -> Metrics:
    """`val/<figure>` over all trajectories, `further` ones, and `val/<data_source>/<figure>` for each data source."""
    by_source = grouped(trajectories, lambda trajectory: trajectory.row.data_source)
    metrics = _under(prefix, {**_validation(trajectories), **further})
    for source, members in sorted(by_source.items()) if prefix == "val" or len(by_source) > 1 else ():
        metrics |= _under(f"{prefix}/{source}", _validation(members))
    return metrics


def succeeded(trajectory: Trajectory, threshold: float = 1.0) -> float | None:
    """1.0 for a success, 0.0 for a failure, or a share in between; None when there is no score.

    The reward function's own "acc" or "success" decides, or else a reward of at least `threshold`.
    """
    if not trajectory.scored:
        return None
    for name in ("acc", "success"):
        value = _number(trajectory.reward_extra.get(name))
        if value is not None:
            return value
    return float(trajectory.reward - trajectory.length_penalty >= threshold)  # type: ignore[operator]  # it is scored


def passed(trajectory: Trajectory, threshold: float = 1.0) -> bool:
    """Whether a trajectory is a whole success."""
    return (succeeded(trajectory, threshold) or 0.0) >= 1.0


def is_wall_clock(name: str) -> bool:
    """Whether a metric depends on the machine rather than on the run: it differs between two equal runs."""
    return name.startswith(("time/", "perf/", "start/"))


def _figures(trajectories: Sequence[Trajectory]) -> Metrics:
    return {**_scores(trajectories), **_shape(trajectories), **_drops(trajectories)}


def _validation(trajectories: Sequence[Trajectory]) -> Metrics:
    return {
        **_figures(trajectories),
        **_under("tools", _call_shares([call for t in trajectories for call in t.calls], len(trajectories))),
        **_under("reward", _extras(trajectories)),
    }


def _scores(trajectories: Sequence[Trajectory]) -> Metrics:
    rewards = [t.reward for t in trajectories if t.reward is not None and t.scored]
    successes = [s for t in trajectories if (s := succeeded(t)) is not None]
    turn_rewards = [math.fsum(r.value for r in t.turn_rewards) for t in trajectories if t.turn_rewards]
    return {
        **_spread("reward", rewards),
        **_mean("success", successes),
        **_mean("turn_reward", turn_rewards),
        **_groups(trajectories),
    }


def _groups(trajectories: Sequence[Trajectory]) -> Metrics:
    """Figures of the samples that share a prompt; none where a prompt has one sample only."""
    by_row = grouped((t for t in trajectories if t.scored), lambda trajectory: trajectory.row.uid)
    groups = [members for members in by_row.values() if len(members) > 1]
    rewards = [zip(*(t.side_rewards or [t.reward or 0.0] for t in members), strict=False) for members in groups]
    flat = [all(np.ptp(each) < SAME_REWARD for each in sides) for sides in rewards]
    solved = [any(passed(t) for t in members) for members in groups]
    return {**_mean("zero_variance_groups", flat), **_mean("pass_at_n", solved)}


def _shape(trajectories: Sequence[Trajectory]) -> Metrics:
    alive = [t for t in trajectories if t.outcome is not Outcome.INFRA_ERROR]
    response = [sum(ledger.response_length for ledger in t.outlines) for t in alive]
    model = [sum(ledger.model_tokens for ledger in t.outlines) for t in alive]
    return {
        **_mean_max("turns", [t.turns for t in alive]),
        **_mean("user_turns", [t.user_turns for t in alive]),
        **_mean("samples_per_trajectory", [len(t.outlines) for t in alive]),
        **_mean_max("response_tokens", response),
        **_mean("model_tokens_mean", model),
        "model_tokens": float(sum(model)),
        **_ratio("mask_share", sum(model), sum(response)),
        **_mean("truncated", [t.finish == "length" for t in alive]),
    }


def _drops(trajectories: Sequence[Trajectory]) -> Metrics:
    drops = sum(t.outcome is Outcome.INFRA_ERROR for t in trajectories)
    masked = [t.outcome is Outcome.INFRA_ERROR for t in trajectories if "no_verdict" in t.extra]
    return {
        "trajectories": float(len(trajectories)),
        "infra_drops": float(drops),
        **_ratio("infra_drop_share", drops, len(trajectories)),
        "no_verdict_masked": float(sum(masked)),
        "no_verdict_zero": float(len(masked) - sum(masked)),
        "ledger_violations": float(sum("ledger_violation" in t.extra for t in trajectories)),
        "template_mismatches": float(sum("template_mismatch" in t.extra for t in trajectories)),
    }


def _finishes(trajectories: Sequence[Trajectory]) -> Metrics:
    if not trajectories:
        return {}
    counts = Counter(t.finish for t in trajectories)
    return {finish: counts[finish] / len(trajectories) for finish in get_args(Finish)}


def _tools(trajectories: Sequence[Trajectory]) -> Metrics:
    calls = [call for t in trajectories for call in t.calls]
    reached = {call.name for call in calls if call.outcome is not Outcome.MODEL_ERROR}
    by_tool = grouped(calls, lambda call: call.name if call.name in reached else OTHER_TOOLS)
    metrics = _call_shares(calls, len(trajectories))
    for name, members in sorted(by_tool.items()):
        metrics |= _under(name, _call_shares(members, len(trajectories)))
    return metrics


def _call_shares(calls: Sequence[ToolCallRecord], trajectories: int) -> Metrics:
    """Calls a trajectory, and how they ended."""
    counts = Counter(call.outcome for call in calls)
    shares = {outcome.value: counts[outcome] / len(calls) for outcome in Outcome} if calls else {}
    return {**_ratio("calls", len(calls), trajectories), **shares}


def _tasks(trajectories: Sequence[Trajectory]) -> Metrics:
    """Metrics of trajectories with a container: the share that succeeded, and where the others failed."""
    tasks = [t for t in trajectories if isinstance(t.extra.get("task"), dict) and "seconds" in t.extra["task"]]
    if not tasks:
        return {}
    failed = Counter(t.extra["task"].get("failed") for t in tasks)
    successes = [value for t in tasks if (value := succeeded(t)) is not None]
    late = sum(t.finish == "timeout" and t.outcome is Outcome.MODEL_ERROR for t in tasks)
    metrics = {**_ratio("share", len(tasks), len(trajectories)), **_mean("success", successes)}
    metrics |= {f"failed_{phase}": failed[phase] / len(tasks) for phase in PHASES} | {"late": late / len(tasks)}
    return metrics


def _extras(trajectories: Sequence[Trajectory]) -> Metrics:
    extras = [extra for t in trajectories if t.scored for extra in t.reward_extra.items()]
    by_name = grouped(extras, lambda extra: extra[0])
    numbers = {name: [n for _, value in by_name[name] if (n := _number(value)) is not None] for name in sorted(by_name)}
    return {name: fmean(found) for name, found in numbers.items() if found}


def _timings(trajectories: Sequence[Trajectory]) -> Metrics:
    tool_seconds = sorted(call.seconds for t in trajectories for call in t.calls if call.seconds)  # 0: unknown
    lives = [max(s.end for s in t.spans) - min(s.start for s in t.spans) for t in trajectories if t.spans]
    by_kind = grouped((span for t in trajectories for span in t.spans), lambda span: span.kind)
    metrics = {**_mean("tool_seconds_mean", tool_seconds), **_mean_max("trajectory_seconds", lives)}
    metrics |= _max("loop_lag", [t.loop_lag for t in trajectories])
    if tool_seconds:
        metrics["tool_seconds_p99"] = tool_seconds[math.ceil(0.99 * len(tool_seconds)) - 1]
    for kind, spans in sorted(by_kind.items()):
        seconds = math.fsum(span.end - span.start for span in spans)
        metrics[f"trajectory_seconds_{kind}"] = seconds / len(trajectories)
    return metrics


def _number(value: Any) -> float | None:
    """A finite number out of what a user's reward function returned; bools count, numpy scalars too."""
    return float(value) if isinstance(value, Real | np.bool_) and math.isfinite(value) else None


def _under(prefix: str, metrics: Metrics) -> Metrics:
    return {f"{prefix}/{name}": value for name, value in metrics.items()}


def _mean(name: str, values: Sequence[float]) -> Metrics:
    return {name: fmean(values)} if values else {}


def _mean_max(name: str, values: Sequence[float]) -> Metrics:
    return {**_mean(f"{name}_mean", values), **_max(name, values)}


def _spread(name: str, values: Sequence[float]) -> Metrics:
    if not values:
        return {}
    about = {f"{name}_mean": fmean(values), f"{name}_std": float(np.std(values)), f"{name}_min": float(min(values))}
    return about | _max(name, values)


def _max(name: str, values: Sequence[float]) -> Metrics:
    return {f"{name}_max": float(max(values))} if values else {}


def _ratio(name: str, part: float, whole: float) -> Metrics:
    return {name: part / whole} if whole else {}
