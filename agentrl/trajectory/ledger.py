"""The token ledger: what the engine saw and sampled, one entry a token, append-only.

Invariants, checked by `Ledger.check` on every trajectory of every run:
- the six columns are equally long;
- mask is 1 exactly where source is MODEL;
- a MODEL token has a finite log-prob <= 0 and a weight version; every other token has log-prob 0.0
  and version -1;
- the prompt is not empty and comes first; turns never decrease.

Text is derived from the ledger, never the reverse: nothing here is ever re-encoded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import compress, islice
from math import isfinite
from operator import le

from agentrl.trajectory.medium import Medium


class Source(IntEnum):
    """Who a token comes from."""

    PROMPT = 0
    MODEL = 1
    TOOL = 2
    USER = 3
    TEMPLATE = 4
    """Framework glue: an end-of-turn that the model did not write, a header, a generation prompt."""


class LedgerError(Exception):
    """An invariant is broken: training on this trajectory would be wrong."""


NO_VERSION = -1
# Log-probs come out of float arithmetic: a certain token may show as 1e-7 instead of 0.
LOGPROB_SLACK = 1e-3


@dataclass
class Ledger:
    """Token columns of one training sample: `ids`, `mask`, `logprobs`, `sources`, `turns`, `versions`."""

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    prompt_length: int = 0
    media: list[Medium] = field(default_factory=list)
    """Images and videos that tokens of the prompt and of observations stand for, in their order."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def response_length(self) -> int:
        """Tokens after the prompt, of any source."""
        return len(self.ids) - self.prompt_length

    @property
    def model_tokens(self) -> int:
        """Tokens the model made: what is trained on."""
        return sum(self.mask)

    def append_prompt(self, ids: Sequence[int], media: Sequence[Medium] = ()) -> None:
        """Start the ledger with everything before the model's first token."""
        if self.ids:
            raise LedgerError("a ledger has one prompt, and it comes first")
        self._extend(ids, Source.PROMPT, turn=0)
        self.media.extend(media)
        self.prompt_length = len(ids)

    def append_model(
        self, ids: Sequence[int], logprobs: Sequence[float], *, turn: int, version: int | Sequence[int]
    ) -> None:
        """Record sampled tokens with the log-probs under which they were drawn, and the weights (one version for
        all, or one a token)."""
        if len(ids) != len(logprobs):
            raise LedgerError(f"{len(ids)} sampled tokens came with {len(logprobs)} log-probs")
        self._extend(ids, Source.MODEL, turn=turn, logprobs=logprobs, version=version)

    def append_observation(self, ids: Sequence[int], source: Source, *, turn: int) -> None:
        """Record tokens that the model reads but did not make (mask 0)."""
        if source in (Source.MODEL, Source.PROMPT):
            raise LedgerError(f"{source.name} tokens are no observation")
        self._extend(ids, source, turn=turn)

    def check(self) -> None:
        """Raise LedgerError naming the first broken invariant."""
        lengths = {len(c) for c in (self.ids, self.mask, self.logprobs, self.sources, self.turns, self.versions)}
        if len(lengths) != 1:
            raise LedgerError(f"columns are out of step: lengths {sorted(lengths)}")
        if not self.prompt_length:
            raise LedgerError("the prompt is empty")
        if not self._plausible():
            for i, token in enumerate(zip(self.mask, self.sources, self.logprobs, self.versions, strict=True)):
                self._check_token(i, *token)
        if not all(map(le, self.turns, islice(self.turns, 1, None))):
            raise LedgerError("turns go backwards")

    def _plausible(self) -> bool:
        """Whether every token passes `_check_token`, found out column by column: this runs on every trajectory."""
        kinds = set(zip(self.mask, self.sources, strict=True))
        off = [not mask for mask in self.mask]
        sampled = list(compress(self.logprobs, self.mask))
        return (
            all(mask == (source == Source.MODEL) for mask, source in kinds)
            and self.sources[: self.prompt_length].count(Source.PROMPT) == self.prompt_length
            and Source.PROMPT not in self.sources[self.prompt_length :]
            and not any(compress(self.logprobs, off))
            and set(compress(self.versions, off)) <= {NO_VERSION}
            and min(compress(self.versions, self.mask), default=0) >= 0
            and isfinite(sum(sampled))
            and max(sampled, default=0.0) <= LOGPROB_SLACK
        )

    def _check_token(self, i: int, mask: int, source: int, logprob: float, version: int) -> None:
        made_by_model = source == Source.MODEL
        if mask != made_by_model:
            raise LedgerError(f"token {i}: mask {mask} but source {Source(source).name}")
        if (source == Source.PROMPT) != (i < self.prompt_length):
            raise LedgerError(f"token {i}: source {Source(source).name} on the wrong side of the prompt's end")
        if made_by_model and not (isfinite(logprob) and logprob <= LOGPROB_SLACK and version >= 0):
            raise LedgerError(f"token {i}: sampled with log-prob {logprob} by weights {version}")
        if not made_by_model and (logprob != 0.0 or version != NO_VERSION):
            raise LedgerError(f"token {i}: not sampled, yet log-prob {logprob}, version {version}")

    def _extend(
        self,
        ids: Sequence[int],
        source: Source,
        *,
        turn: int,
        logprobs: Sequence[float] | None = None,
        version: int | Sequence[int] = NO_VERSION,
    ) -> None:
        n = len(ids)
        self.ids.extend(ids)
        self.mask.extend([int(source == Source.MODEL)] * n)
        self.logprobs.extend([0.0] * n if logprobs is None else logprobs)
        self.sources.extend([int(source)] * n)
        self.turns.extend([turn] * n)
        self.versions.extend([version] * n if isinstance(version, int) else version)
