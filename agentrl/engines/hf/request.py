"""One request of the engine."""

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from numpy.typing import NDArray

from agentrl.core.clocks import now
from agentrl.core.errors import InfraError
from agentrl.engines.engine import FinishReason, Generation, Sampling
from agentrl.engines.experts import joined_experts
from agentrl.trajectory.medium import Medium


@dataclass(eq=False)
class Request:
    """A prompt and the tokens drawn after it.

    Invariants: `tokens` is append-only; `logprobs` and `versions` have one entry for each drawn token; nothing changes
    after `done`. Only the worker thread writes to it.
    """

    key: str
    tokens: list[int]
    sampling: Sampling
    seed: int
    stops: frozenset[int]
    limit: int
    """Most tokens to draw."""
    media: tuple[Medium, ...] = ()
    """Images and videos of the prompt; only models on the fallback take them."""
    prompt_length: int = field(init=False)
    logprobs: list[float] = field(default_factory=list)
    candidates: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    begun: float | None = None
    """When it first ran, in seconds since the epoch."""
    versions: list[int] = field(default_factory=list)
    """Version of the weights that drew each token."""
    experts: list[NDArray[Any]] = field(default_factory=list)
    """Experts of the tokens from `sampling.experts_from` on, pass by pass."""

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
        elif self.drawn >= self.limit:
            self.finish_reason = "length"

    def generation(self, version: int) -> Generation:
        """The result; `version` is the present one."""
        assert self.finish_reason is not None
        drawn = self.tokens[self.prompt_length :]
        told = self.logprobs, self.finish_reason, self.versions, self.candidates
        return Generation.of(drawn, *told, present=version, experts=joined_experts(self.experts))
