"""The border between the protocol of `agentrl serve`, its models and its samplers.

Invariant: calls of a trainer come one after another, in the order of each log; a call that raises changes nothing.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from agentrl.engines.engine import Generation, Sampling
from agentrl.engines.scores import TokenScores
from agentrl.trajectory.medium import Medium


@dataclass(frozen=True)
class AdapterShape:
    """The adapter of a new model. With rank 0 all weights are trained, which one model at a time may do."""

    rank: int = 32
    seed: int | None = None
    attention: bool = True
    mlp: bool = True
    unembed: bool = True


@dataclass(frozen=True)
class Adam:
    """One AdamW step. With a `grad_clip_norm` of 0 there is no clipping."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    grad_clip_norm: float


@dataclass(frozen=True)
class Datum:
    """One sequence to train on: the input tokens `ids` [N], and columns of the same length for the loss.

    They are `target_tokens` int64 [N] or [N, K], and f32 ones of the loss: `weights`, `logprobs`, `advantages`, ...
    """

    ids: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]
    media: tuple[Medium, ...] = ()


class PassResult(NamedTuple):
    """The result of one pass over data: log-probs of each datum's target tokens in their shape, and metrics, of which
    `loss:sum` is one."""

    logprobs: list[NDArray[np.float32]]
    metrics: dict[str, float]


class Trainer(Protocol):
    """Trains many models over one base. Called by one thread. Every method raises UserError for a bad request."""

    def create(self, model: str, shape: AdapterShape) -> None:
        """Add a model with a new adapter, which does not change the base yet."""

    def forward_backward(
        self, model: str, data: Sequence[Datum], loss: str, settings: Mapping[str, float], *, backward: bool
    ) -> PassResult:
        """Compute `loss`, summed over tokens and data; with `backward` add its gradients to those before."""

    def optim_step(self, model: str, adam: Adam) -> dict[str, float]:
        """Take a step with the gradients so far and clear them; returns metrics."""

    def save(self, model: str, folder: Path) -> None:
        """Write weights, optimizer state and gradients so far, as a whole or not at all."""

    def load(self, model: str, folder: Path, *, optimizer: bool) -> None:
        """Restore what `save` wrote of a model of this shape; only the weights without `optimizer`."""

    def export(self, model: str, folder: Path) -> None:
        """Write a sampler's weights, as a whole or not at all: a PEFT adapter, or a model where all weights train."""

    def remove(self, model: str) -> None:
        """Forget a model."""


class Samplers(Protocol):
    """Sample from the base and from many exported adapters at once."""

    async def generate(
        self,
        weights: Path | None,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        stop: Sequence[str] = (),
        media: Sequence[Medium] = (),
    ) -> Generation:
        """One answer of the adapter in the folder `weights`; None: of the base. `stop`: texts that end it, and stay in
        it. Raises UserError, InfraError."""

    async def score(self, weights: Path | None, ids: Sequence[int], topk: int) -> TokenScores:
        """Log-probs of the tokens, each after those before it, at temperature 1; NaN for the first."""

    def training(self) -> AbstractAsyncContextManager[None]:
        """Within the body the samplers leave the trainer's parameters and its device alone, where they share them."""

    async def close(self) -> None:
        """Free everything."""
