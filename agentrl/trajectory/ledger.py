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
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.core.errors import plural
from agentrl.trajectory.column import BYTE, FLOAT, INT, Column, Runs
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


KINDS = {"ids": INT, "mask": BYTE, "logprobs": FLOAT, "sources": BYTE, "turns": INT, "versions": INT}
"""Types of the columns, by name."""
EACH = ("ids", "logprobs")
"""Columns that differ from token to token."""
TEACHER_COLUMNS = ("teacher_logprobs", "teacher_topk_ids", "teacher_topk_logprobs")
"""Arrays that a teacher's server has filled; None without one."""


@dataclass
class Ledger:
    """Token columns of one training sample: `ids`, `mask`, `logprobs`, `sources`, `turns`, `versions`.

    A column reads as a list; a list that is assigned becomes one. Ids and log-probs take 12 bytes a token together, the
    other columns a few bytes a turn.
    """

    ids: Column[int] = field(default_factory=partial(Column, INT))
    mask: Column[int] = field(default_factory=partial(Runs, BYTE))
    logprobs: Column[float] = field(default_factory=partial(Column, FLOAT))
    sources: Column[int] = field(default_factory=partial(Runs, BYTE))
    turns: Column[int] = field(default_factory=partial(Runs, INT))
    versions: Column[int] = field(default_factory=partial(Runs, INT))
    prompt_length: int = 0
    media: list[Medium] = field(default_factory=list)
    """Images and videos that tokens of the prompt and of observations stand for, in their order."""
    side: int = 0
    """The side of a game that the policy plays in it."""
    experts: list[NDArray[Any]] = field(default_factory=list, compare=False)
    """Experts that the tokens met in the engine, from the first token on, where they are recorded: arrays uint8 or
    int16 [n, layers, k], one after the other. They end before the last token, which no pass has computed yet."""
    teacher: int = -1
    """Its teacher, by its number among `teachers`; -1: none."""
    teacher_prompt: list[int] = field(default_factory=list, compare=False)
    """Tokens that a teacher with a context reads in place of the prompt; empty: it reads the prompt."""
    teacher_logprobs: NDArray[Any] | None = field(default=None, compare=False)
    """f32 [T]; the teacher's log-probs of the tokens, NaN where it has none; read on the model's tokens only. None:
    no server has scored them."""
    teacher_topk_ids: NDArray[Any] | None = field(default=None, compare=False)
    """int32 [T, k]; the teacher's likeliest tokens in place of each token."""
    teacher_topk_logprobs: NDArray[Any] | None = field(default=None, compare=False)
    """f32 [T, k]; their log-probs."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in KINDS and not isinstance(value, Column):
            value = (Column if name in EACH else Runs)(KINDS[name], value)
        super().__setattr__(name, value)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        turns = len(set(self.turns)) if self.model_tokens else 0
        return f"Ledger({plural(len(self), 'token')}, {self.model_tokens} of the model in {plural(turns, 'turn')})"

    @property
    def routed(self) -> int:
        """Tokens whose experts are known: the first ones."""
        return sum(map(len, self.experts))

    @property
    def optional(self) -> list[str]:
        """Names of its columns that not every ledger has."""
        taught = ["teacher"] if self.teacher >= 0 else []
        names = ("media", "experts", "teacher_prompt", *TEACHER_COLUMNS)
        return taught + [n for n in names if (own := getattr(self, n)) is not None and len(own)]

    def unknown_experts(self, like: NDArray[Any]) -> NDArray[Any]:
        """Rows of all other tokens, of ids that are no experts, in the form of other rows."""
        none = np.iinfo(np.uint8).max if like.dtype == np.uint8 else -1
        return np.full((len(self) - self.routed, *like.shape[1:]), none, like.dtype)

    @property
    def source_names(self) -> list[str]:
        """Names of `sources`: prompt, model, tool, user or template."""
        return [Source(source).name.lower() for source in self.sources]

    @property
    def response_length(self) -> int:
        """Tokens after the prompt, of any source."""
        return len(self.ids) - self.prompt_length

    @property
    def model_tokens(self) -> int:
        """Tokens the model made: what is trained on."""
        return len(self.mask) - self.mask.count(0)

    def turn_ids(self) -> dict[int, list[int]]:
        """The tokens that the model made, by turn."""
        made = self._made()
        turns, ids = self.turns.numpy()[made], self.ids.numpy()[made]
        starts = np.flatnonzero(np.diff(turns, prepend=turns[:1] - 1))
        parts = np.split(ids, starts[1:])
        return {int(turns[start]): part.tolist() for start, part in zip(starts, parts, strict=True)} if len(ids) else {}

    @property
    def turn_ends(self) -> dict[int, int]:
        """Where the last token of each of the model's turns is."""
        made = self._made()
        turns = self.turns.numpy()[made]
        last = np.append(turns[1:] != turns[:-1], True)[: len(turns)]
        return dict(zip(turns[last].tolist(), made[last].tolist(), strict=True))

    @property
    def drawn_by(self) -> dict[int, int]:
        """Number of the model's tokens by the version of the weights that drew them."""
        versions, tokens = np.unique(self.versions.numpy()[self._made()], return_counts=True)
        return dict(zip(versions.tolist(), tokens.tolist(), strict=True))

    def append_prompt(self, ids: Sequence[int], media: Sequence[Medium] = ()) -> None:
        """Start the ledger with everything before the model's first token."""
        if self.ids:
            raise LedgerError("a ledger has one prompt, and it comes first")
        self._extend(ids, Source.PROMPT, turn=0)
        self.media.extend(media)
        self.prompt_length = len(ids)

    def append_model(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float],
        *,
        turn: int,
        version: int | Sequence[int],
        experts: NDArray[Any] | None = None,
    ) -> None:
        """Record sampled tokens with the log-probs under which they were drawn, and the weights (one version for
        all, or one a token). `experts`: those of the tokens from number `routed` on."""
        if len(ids) != len(logprobs):
            raise LedgerError(f"{len(ids)} sampled tokens came with {len(logprobs)} log-probs")
        self._extend(ids, Source.MODEL, turn=turn, logprobs=logprobs, version=version)
        if experts is not None and len(rows := experts[: len(self) - self.routed]):
            self.experts.append(rows)

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
        self._check_tokens()
        if self.routed > len(self) or len({(rows.dtype, rows.shape[1:]) for rows in self.experts}) > 1:
            raise LedgerError("the experts of its tokens are too many, or of several models")
        turns = self.turns.numpy()
        if (turns[1:] < turns[:-1]).any():
            raise LedgerError("turns go backwards")

    def _check_tokens(self) -> None:
        """Raise LedgerError for the first token that breaks an invariant."""
        sources, logprobs, versions = self.sources.numpy(), self.logprobs.numpy(), self.versions.numpy()
        made, early = sources == Source.MODEL, np.arange(len(sources)) < self.prompt_length
        sampled = np.isfinite(logprobs) & (logprobs <= LOGPROB_SLACK) & (versions >= 0)
        plain = (logprobs == 0.0) & (versions == NO_VERSION)
        faults = {
            "mask {mask} but source {source}": self.mask.numpy() != made,
            "source {source} on the wrong side of the prompt's end": (sources == Source.PROMPT) != early,
            "sampled with log-prob {logprob} by weights {version}": made & ~sampled,
            "not sampled, yet log-prob {logprob}, version {version}": ~made & ~plain,
        }
        broken = np.logical_or.reduce(list(faults.values()))
        if broken.any():
            i = int(broken.argmax())
            fault, source = next(text for text, where in faults.items() if where[i]), Source(self.sources[i]).name
            found = {"mask": self.mask[i], "logprob": self.logprobs[i], "version": self.versions[i]}
            raise LedgerError(f"token {i}: {fault.format(source=source, **found)}")

    def _made(self) -> NDArray[np.intp]:
        """Where the tokens are that the model made."""
        return np.flatnonzero(self.mask.numpy())

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
        self.mask.repeat(int(source == Source.MODEL), n)
        if logprobs is None:
            self.logprobs.repeat(0.0, n)
        else:
            self.logprobs.extend(logprobs)
        self.sources.repeat(int(source), n)
        self.turns.repeat(turn, n)
        if isinstance(version, int):
            self.versions.repeat(version, n)
        else:
            self.versions.extend(version)
