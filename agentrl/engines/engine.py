"""The engine contract: token ids in, token ids and their log-probs out.

Invariants every engine keeps (tests/engines/conformance.py runs them against each):
- `len(token_ids) == len(logprobs)`; a log-prob is that of the sampled token under the distribution it
  was drawn from (after repetition penalty, temperature, top-k, top-p, min-p), in nats, <= 0;
- a stop token that ended the generation is part of `token_ids`;
- a cancelled `generate` leaves nothing running; `release(key)` leaves nothing cached;
- `generate` may be called from many tasks at once and never blocks the event loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from agentrl.config.schema.marks import FILTERS, Range
from agentrl.core.errors import UserError
from agentrl.engines.experts import joined_experts
from agentrl.trajectory.medium import Medium

FinishReason = Literal["stop", "length", "abort"]
RANGES = {
    "max_new_tokens": Range(lambda value: value >= 1, "give 1 or more"),
    "temperature": Range(lambda value: 0 <= value < float("inf"), "give 0 (greedy) or more"),
    **FILTERS,
}


@dataclass(frozen=True)
class Sampling:
    """How to draw tokens for one request."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 means greedy; log-probs are then those of the untempered distribution."""
    top_p: float = 1.0
    top_k: int = 0
    """Keep the k likeliest tokens; 0 (or -1, verl's spelling) keeps all."""
    min_p: float = 0.0
    """Keep tokens of at least this share of the likeliest one's probability; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Logits of tokens that the sequence already has are divided by it, negative ones multiplied; 1 changes nothing."""
    seed: int | None = None
    """Same seed, same prompt, same weights: same tokens, as far as float arithmetic allows."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    """Do not stop at `stop_token_ids`."""
    candidates: int = 0
    """How many of the likeliest first tokens to report; not at temperature 0."""
    adapter: str | None = None
    """Name of the loaded adapter that draws; "": the base without one; None: the policy's weights."""
    experts_from: int | None = None
    """First token of prompt and answer whose experts are reported; None: those of no token."""


def limit_sampling(sampling: Sampling, prompt: int, model: int) -> Sampling:
    """The sampling, limited to the room after `prompt` tokens of a sequence of `model`. Raises UserError when there is
    no room, or when a setting is out of range."""
    for name, valid in RANGES.items():
        if not valid.fits(value := getattr(sampling, name)):
            raise UserError(f"{name}={value}: {valid.says}")
    if not prompt:
        raise UserError("the prompt is empty: an engine needs at least one token to continue")
    if prompt >= model:
        raise UserError(
            f"a prompt of {prompt} tokens leaves no room within rollout.max_model_len={model}: raise it, or shorten "
            "the prompt"
        )
    return replace(sampling, max_new_tokens=min(sampling.max_new_tokens, model - prompt))


@dataclass(frozen=True)
class Generation:
    """The tokens that one request drew."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    weight_version: int
    """Version of the weights that drew the first token."""
    versions: tuple[int, ...] = ()
    """Version for each token; empty: `weight_version` drew all."""
    candidates: tuple[tuple[int, float], ...] = ()
    """The likeliest first tokens, as many as were asked for: (token, log-prob after temperature)."""
    experts: NDArray[Any] | None = None
    """Experts that the tokens met, uint8 or int16 [n, layers, k], from `Sampling.experts_from` to the last but one;
    None where they were not asked for, or no pass ran."""


@dataclass(eq=False, kw_only=True)
class Drawn:
    """What a request has got so far. Invariant: each drawn token has one log-prob and one version."""

    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """Version of the weights that drew each token."""
    candidates: tuple[tuple[int, float], ...] = ()
    experts: list[NDArray[Any]] = field(default_factory=list)
    """Experts of the tokens from `Sampling.experts_from` on, pass by pass or answer by answer."""
    finish_reason: FinishReason | None = None
    """Why it is over; None: it goes on."""

    def generation(self, token_ids: list[int], present: int) -> Generation:
        """The drawn tokens as the result; without tokens its version is the `present` one."""
        first = self.versions[0] if self.versions else present
        each = () if self.versions.count(first) == len(self.versions) else tuple(self.versions)
        reason, experts = self.finish_reason or "abort", joined_experts(self.experts)
        return Generation(token_ids, self.logprobs, reason, first, each, self.candidates, experts)


class Engine(Protocol):
    """A source of tokens; the module docstring has the invariants."""

    async def start(self) -> None:
        """Prepare to generate. Raises UserError when the engine cannot run here."""

    async def close(self) -> None:
        """Stop everything and free everything; safe to call twice."""

    def open(self, key: str) -> None:
        """Announce a trajectory: all its requests have `key`, and go to the replica that has its cache."""

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, key: str, media: Sequence[Medium] = ()
    ) -> Generation:
        """Continue `token_ids`, which contain the tokens of `media` in order.

        Raises InfraError when the engine fails, UserError when it takes no media, asyncio.CancelledError when
        cancelled.
        """

    def release(self, key: str) -> None:
        """Forget a trajectory: stop the requests of `key` and free its cache. Unknown keys are ignored."""

    async def abort(self) -> None:
        """End every request in flight; each returns the tokens drawn so far with finish_reason "abort"."""

    async def pause(self) -> None:
        """Stop all requests at their present token; returns when no forward pass runs."""

    async def resume(self) -> None:
        """Continue after `pause`."""

    async def update_weights(self, version: int) -> None:
        """Load the policy's current weights, drop every cache of the old ones, and give later tokens `version`."""

    async def sleep(self) -> None:
        """Free the memory that an idle engine does not need."""

    async def wake(self) -> None:
        """Undo `sleep`."""

    async def health(self) -> dict[str, float]:
        """Load figures (running, waiting, ...). Raises InfraError when the engine is dead."""
