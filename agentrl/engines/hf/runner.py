"""Requests of the engine, and the contract of runners, which draw tokens for them, one forward pass at a time."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.core.clocks import now
from agentrl.core.errors import InfraError
from agentrl.engines.engine import Drawn, Generation, Sampling
from agentrl.engines.hf.adapters import AS_IS, LoadedAdapter
from agentrl.engines.hf.sampler import likeliest, sample, streams
from agentrl.trajectory.medium import Medium


@dataclass(eq=False)
class Request(Drawn):
    """A prompt and the tokens drawn after it.

    Invariants: `tokens` is append-only; nothing changes after `done`. Only the worker thread writes to it.
    """

    key: str
    tokens: list[int]
    sampling: Sampling
    seed: int
    stops: frozenset[int]
    adapter: LoadedAdapter = AS_IS
    media: tuple[Medium, ...] = ()
    """Images and videos of the prompt; only models on the fallback take them."""
    future: asyncio.Future[Generation] | None = None
    """Gets the result; None: nothing waits for it."""
    prompt_length: int = field(init=False)
    error: Exception | None = None
    begun: float | None = None
    """When it first ran, in seconds since the epoch."""

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def done(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    @property
    def drawn(self) -> int:
        """Tokens drawn so far."""
        return len(self.logprobs)

    def begin(self) -> None:
        """Mark it as running."""
        self.begun = self.begun or now()

    def met(self, rows: NDArray[Any]) -> None:
        """Add the experts of a pass over its last tokens, [n, layers, k], as far as they are new and asked for."""
        if self.sampling.experts_from is not None:
            known = self.sampling.experts_from + sum(map(len, self.experts))
            self.experts.append(rows[len(rows) - (len(self.tokens) - known) :])

    def append(self, token: int, logprob: float, version: int) -> None:
        """Add one drawn token, and finish if it ends the generation."""
        if not isfinite(logprob):
            self.error = InfraError("hf engine: the model's logits are not finite; have its weights diverged?")
            return
        self.tokens.append(token)
        self.versions.append(version)
        self.logprobs.append(min(logprob, 0.0))
        if token in self.stops:
            self.finish_reason = "stop"
        elif self.drawn >= self.sampling.max_new_tokens:
            self.finish_reason = "length"


Emit = Callable[[Sequence[Request], Sequence[int], Sequence[float]], bool]
"""Takes one token and log-prob for each request; False: stop here, weights or requests are about to change."""


class Runner(Protocol):
    """Draws tokens with the policy's module, in the worker thread."""

    computed: int
    """Tokens that went through a forward pass, in all."""

    def step(self, requests: Sequence[Request], emit: Emit) -> None:
        """Advance as many of the unfinished `requests`, all of one adapter, as fit, the first ones first."""

    def in_flight(self) -> Sequence[Request]:
        """The requests that a failure of `step` ends."""

    def leave(self, request: Request) -> None:
        """A request is over."""

    def forget(self, key: str) -> None:
        """Free the cache of `key`."""

    def clear(self) -> None:
        """Free the whole cache; requests in flight compute theirs again at the next step."""

    def reload(self) -> None:
        """The module's weights have changed."""

    def stats(self) -> dict[str, float]:
        """Figures for `health`."""


def draw(logits: Tensor, requests: Sequence[Request]) -> tuple[list[int], list[float]]:
    """The next token of each request and its log-prob, from `logits` [n, vocabulary]."""
    samplings = [request.sampling for request in requests]
    with torch.inference_mode():
        logits = penalized(logits, requests)
        for row, request in zip(logits, requests, strict=True):
            if request.sampling.candidates and request.sampling.temperature and not request.drawn:
                request.candidates = likeliest(row, request.sampling)
        noise = streams([request.seed for request in requests], [request.drawn for request in requests])
        return sample(logits, samplings, noise)


def penalized(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    """The logits with each request's `repetition_penalty` (CTRL, arXiv 1909.05858) on the tokens it has, prompt
    included."""
    if all(request.sampling.repetition_penalty == 1 for request in requests):
        return logits
    logits = logits.to(torch.float32, copy=True)
    for row, request in zip(logits, requests, strict=True):
        seen = torch.tensor(sorted(set(request.tokens)), device=row.device)
        values, penalty = row[seen], request.sampling.repetition_penalty
        row[seen] = torch.where(values < 0, values * penalty, values / penalty)
    return logits
