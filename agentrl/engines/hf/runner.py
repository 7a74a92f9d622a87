"""The contract of runners, which draw tokens for requests, one forward pass at a time."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from agentrl.engines.hf.request import Request
from agentrl.engines.hf.sampler import likeliest, sample, stream

Emit = Callable[[Sequence[Request], Sequence[int], Sequence[float]], bool]
"""Takes one token and log-prob for each request; False: stop here, weights or requests are about to change."""


class Runner(Protocol):
    """Draws tokens with the policy's module, in the worker thread."""

    computed: int
    """Tokens that went through a forward pass, in all."""

    def step(self, requests: Sequence[Request], emit: Emit) -> None:
        """Advance as many of the unfinished `requests` as fit, the first ones first."""

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
        return sample(logits, samplings, [stream(request.seed, request.drawn) for request in requests])


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
