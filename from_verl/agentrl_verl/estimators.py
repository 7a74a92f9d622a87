"""Advantage estimators registered as verl has them, which `algorithm.adv_estimator` then names.

Such a function gets padded rows [N, R], one row a trajectory: `token_level_rewards` f32, `response_mask` int64,
`index` (an object array [N] whose equal entries are one prompt), `config` (the section `algorithm`); and, where it
names them, `reward_baselines` f32 [N], `values` f32 [N, R], `gamma`, `lam`, `norm_adv_by_std_in_grpo`. It returns
(advantages, returns), or the advantages, [N, R] each.
"""

import inspect
from collections.abc import Callable
from enum import Enum, StrEnum
from typing import Any, ClassVar

import torch
from torch import Tensor

from agentrl.algorithms.segments import dense
from agentrl.core.errors import UserError
from agentrl.core.points import ADVANTAGES, ESTIMATOR_COLUMNS
from agentrl_verl.config_views import AlgoConfig
from agentrl_verl.data_proto import object_array
from agentrl_verl.padded import rows_of

Function = Callable[..., Any]


class AdvantageEstimator(StrEnum):
    """Names of estimators."""

    GAE = "gae"
    GRPO = "grpo"
    GDPO = "gdpo"
    REINFORCE_PLUS_PLUS = "reinforce_plus_plus"
    REINFORCE_PLUS_PLUS_BASELINE = "reinforce_plus_plus_baseline"
    REMAX = "remax"
    RLOO = "rloo"
    OPO = "opo"
    GRPO_PASSK = "grpo_passk"
    GPG = "gpg"
    RLOO_VECTORIZED = "rloo_vectorized"
    GRPO_VECTORIZED = "grpo_vectorized"


ADV_ESTIMATOR_REGISTRY: dict[str, Function] = {}
"""By name, in verl's shape."""

# A keyword of ours, and the argument of verl's that it becomes.
TENSORS = {"baselines": "reward_baselines", "values": "values"}
NUMBERS = {"gamma": "gamma", "lam": "lam", "norm_by_std": "norm_adv_by_std_in_grpo"}


def register_adv_est(name_or_enum: str | Enum) -> Callable[[Function], Function]:
    """A decorator that makes a function known to `algorithm.adv_estimator`. Raises ValueError for a taken name."""

    def decorate(function: Function) -> Function:
        name = name_of(name_or_enum)
        if ADV_ESTIMATOR_REGISTRY.get(name, function) is not function or name in ADVANTAGES.declared:
            raise ValueError(f"an advantage estimator {name!r} is there already; give yours another name")
        ADV_ESTIMATOR_REGISTRY[name] = function
        adopt(name, function)
        return function

    return decorate


def adopt(name: str, function: Function) -> None:
    """Let `algorithm.adv_estimator` find it."""
    ADVANTAGES.add(name, PaddedEstimator(name, function), replace=True)


class PaddedEstimator:
    """agentrl's contract around a function with verl's. See `agentrl.algorithms.advantages`."""

    __name__: ClassVar[str] = "PaddedEstimator"

    def __init__(self, name: str, function: Function) -> None:
        self.name, self.function = name, function
        parameters = inspect.signature(function).parameters
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self.names = frozenset(parameters)
        read = [ours for ours, theirs in (TENSORS | NUMBERS).items() if theirs in self.names]
        self.__signature__ = _signature((*read, "config"))

    def __call__(
        self,
        rewards: Tensor,
        mask: Tensor,
        cu_seqlens: Tensor,
        trajectory: Tensor,
        group: Tensor,
        *,
        config: Any = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        """(advantages f32 [T], returns f32 [T])."""
        rows = rows_of(mask, cu_seqlens, trajectory)
        first = _first_of_each(trajectory)
        given: dict[str, Any] = {
            "token_level_rewards": rows.pad(rewards),
            "response_mask": rows.pad(mask.long()),
            "index": object_array([str(prompt) for prompt in group[first].tolist()]),
            "config": AlgoConfig(config),
        }
        if "baselines" in options:
            given["reward_baselines"] = options["baselines"][first]
        if "values" in options:
            given["values"] = rows.pad(options["values"])
        given |= {theirs: options[ours] for ours, theirs in NUMBERS.items() if ours in options}
        result = self.function(**{k: v for k, v in given.items() if self.takes_any or k in self.names})
        both = result if isinstance(result, tuple) else (result, result)
        if len(both) != 2:
            raise UserError(f"it gave {len(both)} values; return (advantages, returns)")
        padded = [self._fitting(tensor, rows.there) for tensor in both]
        return rows.unpad(padded[0]), rows.unpad(padded[1])

    def _fitting(self, tensor: Any, there: Tensor) -> Tensor:
        shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        if not isinstance(tensor, Tensor) or tensor.shape != there.shape:
            raise UserError(f"it gave {shape} for token_level_rewards of the shape {tuple(there.shape)}")
        return tensor.float()


def _first_of_each(trajectory: Tensor) -> Tensor:
    """The first sequence of each trajectory, in rising order of trajectories: int64 [N]."""
    index, n = dense(trajectory)
    places = torch.arange(len(index), device=index.device)
    return torch.full((n,), len(index), device=index.device).scatter_reduce(0, index, places, "amin")


def _signature(keywords: tuple[str, ...]) -> inspect.Signature:
    kind = inspect.Parameter
    columns = [kind(name, kind.POSITIONAL_OR_KEYWORD) for name in ESTIMATOR_COLUMNS]
    return inspect.Signature([*columns, *(kind(name, kind.KEYWORD_ONLY, default=None) for name in keywords)])


def name_of(name_or_enum: str | Enum) -> str:
    """The name itself, or the value of a member of an enumeration."""
    return str(name_or_enum.value if isinstance(name_or_enum, Enum) else name_or_enum)
