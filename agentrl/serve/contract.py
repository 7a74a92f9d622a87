"""The data that the protocol of `agentrl serve` and its models exchange."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl.trajectory.medium import Medium


@dataclass(frozen=True)
class AdapterShape:
    """The adapter of a new model. With rank 0 all weights are trained, which one model at a time may do."""

    rank: int = 32
    seed: int = 0
    attention: bool = True
    mlp: bool = True
    unembed: bool = True


@dataclass(frozen=True)
class Adam:
    """One AdamW step. With a `grad_clip_norm` of 0 there is no clipping."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True)
class Datum:
    """One sequence to train on: the input tokens `ids` [N], and columns of the same length for the loss.

    They are `target_tokens` int64 [N] or [N, K], and f32 ones of the loss: `weights`, `logprobs`, `advantages`, ...
    """

    ids: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]
    media: Sequence[Medium] = ()
    """Its images, whose tokens are among `ids`."""


class PassResult(NamedTuple):
    """The result of one pass over data: log-probs of each datum's target tokens in their shape, and metrics, of which
    `loss:sum` is one."""

    logprobs: list[NDArray[np.float32]]
    metrics: dict[str, float]
