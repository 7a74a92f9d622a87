"""The layouts of a run on so many GPUs: those that fit, with memory and seconds, the fastest first."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from typing import Any

from agentrl.config.schema import Config
from agentrl.core.errors import UserError, plural
from agentrl.doctor.forecast import Layout
from agentrl.doctor.memory import TIGHT, Size
from agentrl.doctor.speeds import Speeds

Settings = dict[str, Any]
MOST_GPUS = 2
"""GPUs of the largest runs that forecasts came within 15% of."""
SPLITS = (1, 2, 4, 8, 16, 32, 64)
BOUNDS = (0, 4)
CHECKPOINTING = {"model.enable_gradient_checkpointing": True}
OFFLOAD = CHECKPOINTING | {"actor.fsdp_config.optimizer_offload": True}
OFFLOAD_ALL = OFFLOAD | {"actor.fsdp_config.param_offload": True}
EIGHT_BITS = CHECKPOINTING | {"actor.optim.optimizer": "adamw_8bit"}
SAVERS: tuple[Settings, ...] = (
    {}, CHECKPOINTING, OFFLOAD, EIGHT_BITS, OFFLOAD_ALL, OFFLOAD_ALL | {"rollout.quantization": "fp8"}
)  # fmt: skip
"""Settings that save memory; a later one is taken where no earlier one fits."""


SIMPLER = 0.97
"""A layout with one setting more is to be faster by this at the least."""


@dataclass(frozen=True)
class Plan:
    """A layout with its forecast."""

    layout: Layout
    settings: Settings
    """The keys that make it, where they are not set so already."""
    memory: tuple[float, float]
    """GiB of each GPU in updates, and in rollouts."""
    seconds: dict[str, float]
    speed: float
    """Tokens/s that are sampled and trained on, prompts included."""

    @property
    def words(self) -> list[str]:
        """The settings as words of a command."""
        return [f"{key}={str(value).lower()}" for key, value in self.settings.items()]

    @property
    def error(self) -> float:
        """Share by which the seconds may be wrong: as measured on one and two GPUs, and a guess beyond."""
        gpus, machines = self.layout.ranks + self.layout.apart, self.layout.config.trainer.nnodes
        return 0.15 + 0.1 * (self.layout.size.experts > 0) + 0.1 * (gpus > MOST_GPUS) + 0.25 * (machines > 1)


def plans(
    config: Config, size: Size, speeds: Speeds, gpus: int, *, per_node: int = 8, fixed: Collection[str] = ()
) -> list[Plan]:
    """The best plan of each placement and split of experts, fast and simple ones first; `fixed`: keys that keep their
    value. Raises UserError where none fits."""
    splits = SPLITS if size.experts else (1,)
    placed = (
        placement | {"actor.fsdp_config.expert_parallel_size": experts}
        for placement, experts in product(placements(gpus, per_node), splits)
    )
    found = [plan for settings in placed if (plan := _best(config, size, speeds, settings, fixed))]
    if found:
        return sorted(found, key=lambda plan: -plan.speed * SIMPLER ** len(plan.settings))
    raise UserError(
        f"no layout of {size.parameters / 1e9:.1f}B parameters fits on {plural(gpus, 'GPU')} of {speeds.memory:.0f} "
        "GiB: take more GPUs or larger ones, set model.lora_rank=16, or lower data.max_response_length"
    )


def placements(gpus: int, per_node: int) -> Iterator[Settings]:
    """Settings that place a run: trainer and servers on all GPUs, or apart. Raises UserError for a number of GPUs that
    machines do not have."""
    unit = per_node if gpus > per_node else 1
    if gpus < 1 or gpus % unit:
        raise UserError(f"--gpus {gpus}: with {per_node} GPUs a machine, choose at most that many or a multiple of it")

    def placed(name: str, count: int) -> Settings:
        nodes = (count, per_node) if unit > 1 else (min(count, 1), count or None)
        return {f"{name}.nnodes": nodes[0], f"{name}.n_gpus_per_node": nodes[1]}

    yield placed("trainer", gpus // unit) | {"rollout.nnodes": 0}
    for count in dict.fromkeys(round(gpus * share / unit) for share in (0.25, 0.5, 0.75)):
        apart = gpus // unit - count
        for bound in BOUNDS if count and apart else ():
            yield placed("trainer", count) | placed("rollout", apart) | {"trainer.max_staleness": bound}


def _best(config: Config, size: Size, speeds: Speeds, placed: Settings, fixed: Collection[str]) -> Plan | None:
    """The fastest of the layouts that fit with the least of SAVERS."""
    for savers, sequence in product(SAVERS, SPLITS[:4]):
        splits = savers | {"actor.ulysses_sequence_parallel_size": sequence}
        tried = (placed | splits | {"rollout.tensor_model_parallel_size": tensor} for tensor in SPLITS[:4])
        fitting = [plan for settings in tried if (plan := _plan(config, size, speeds, settings, fixed))]
        if fitting:
            return max(fitting, key=lambda plan: plan.speed)
    return None


def _plan(config: Config, size: Size, speeds: Speeds, settings: Settings, fixed: Collection[str]) -> Plan | None:
    """The forecast of these settings; None: they do not fit, or change a key that is `fixed`."""
    changed = {key: value for key, value in settings.items() if reduce(getattr, key.split("."), config) != value}
    layout = Layout(with_settings(config, changed), size, speeds)
    if not changed.keys().isdisjoint(fixed) or not layout.divides():
        return None
    memory = layout.memory()
    if max(memory) > TIGHT * speeds.memory:
        return None
    seconds = layout.seconds()
    return Plan(layout, changed, memory, seconds, layout.samples * (layout.prompt + layout.answer) / seconds["step"])


def with_settings(section: Any, settings: Settings) -> Any:
    """The configuration with other values of these keys."""
    for path, value in settings.items():
        first, _, rest = path.partition(".")
        section = replace(section, **{first: with_settings(getattr(section, first), {rest: value}) if rest else value})
    return section
