"""The figures a person follows while a run goes: what they are called, where they come from, how they are shown."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


def share(value: float) -> str:
    """0.314 -> 31.4%"""
    return f"{value:.1%}" if value < 0.9995 else "100%"


def figure(value: float) -> str:
    """Three or four digits at any size: 3.1e-05, 0.0021, 0.421, 12.5, 1,204."""
    size = abs(value)
    if size == 0:
        return "0"
    if size < 5e-4:
        return f"{value:.1e}"
    if size < 0.1:
        return f"{value:.4f}"
    if size < 10:
        return f"{value:.3f}"
    return f"{value:.1f}" if size < 1000 else f"{value:,.0f}"


def count(value: float) -> str:
    """2.41, 1,204, 18.2k"""
    if value >= 10_000:
        return f"{value / 1000:.1f}k"
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def whole(value: float) -> str:
    """3"""
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """40ms, 4.2s, 41s, 12:41, 1:02:03"""
    if seconds < 0.95:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass(frozen=True)
class Field:
    """One figure: the first of `names` that a step reports."""

    label: str
    names: tuple[str, ...]
    show: Callable[[float], str]
    brief: str = ""
    """Label in a one-line report; empty: not shown there."""
    alarm: Callable[[float], bool] = lambda _: False
    """Whether this value deserves a second look."""
    zero: bool = True
    """Whether 0 is a value; otherwise it says that there is none."""
    note: str = ""
    """What the label means, where it does not say so."""
    better: int = 0
    """1: higher is better, -1: lower, 0: neither."""

    def value(self, metrics: Mapping[str, float]) -> float | None:
        """The figure, or None where the step does not have it."""
        value = next((metrics[name] for name in self.names if name in metrics), None)
        return value if value or self.zero else None


SUCCESS = "share of conversations whose reward function says acc or success, else whose reward is at least 1"
FLAT = "share of prompts whose samples have equal rewards: no gradient"

# Four to a row on a terminal of 100 columns: what the model does, how sound the samples are, the update, speed.
FIELDS = (
    Field("turns", ("rollout/turns_mean",), count, "turns"),
    Field("tool calls", ("tools/calls",), count, "calls"),
    Field("call errors", ("tools/model_error",), share, "bad calls"),
    Field("infra errors", ("tools/infra_error",), share, alarm=lambda v: v > 0),
    Field("mask share", ("rollout/mask_share",), share),
    Field("truncated", ("rollout/truncated",), share, alarm=lambda v: v > 0.5),
    Field("flat groups", ("rollout/zero_variance_groups",), share, alarm=lambda v: v > 0.9, note=FLAT),
    Field("infra drops", ("rollout/infra_drops",), whole, alarm=lambda v: v > 0),
    Field("KL", ("actor/kl_loss", "actor/reward_kl"), figure, "kl"),
    Field("update KL", ("actor/ppo_kl",), figure, "update kl", zero=False),
    Field("entropy", ("actor/entropy",), figure, "entropy"),
    Field("log-prob gap", ("rollout_gap/mean",), figure, "gap", alarm=lambda v: v > 0.05),
    Field("grad norm", ("actor/grad_norm",), figure, "grad"),
    Field("staleness", ("staleness/mean",), figure, "stale"),
    Field("oldest", ("staleness/max",), whole),
    Field("mixed", ("staleness/mixed",), share),
    Field("stale gap", ("staleness/gap_mean",), figure),
    Field("queue", ("perf/queue_groups",), whole, "queue"),
    Field("interrupted", ("perf/interruptions",), whole),
    Field("trainer waits", ("perf/trainer_wait_share",), share),
    Field("engine idle", ("perf/engine_idle_share",), share),
    Field("rollout tok/s", ("perf/rollout_tokens_per_s",), count, "tok/s"),
    Field("update tok/s", ("perf/update_tokens_per_s",), count),
)
