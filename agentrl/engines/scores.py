"""Log-probs of given tokens under a teacher, as servers return them; checked before anything trains on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl.core.errors import InfraError
from agentrl.trajectory.ledger import LOGPROB_SLACK


class ServerScores(NamedTuple):
    """Log-probs of a request's tokens, the first one left out: unchecked."""

    given: Sequence[Any]
    """[log-prob, id, text or None] of each token."""
    likeliest: Sequence[Any]
    """[log-prob, id, text or None] of the k likeliest tokens in place of each; empty where k is 0."""


@dataclass(frozen=True)
class TokenScores:
    """A teacher's log-probs of T tokens, each after those before it; NaN off the mask."""

    logprobs: NDArray[np.float32]
    """[T]."""
    topk_ids: NDArray[np.int32]
    """[T, k]; the likeliest tokens in place of each token, 0 off the mask."""
    topk_logprobs: NDArray[np.float32]
    """[T, k]."""

    @classmethod
    def blank(cls, tokens: int, k: int) -> "TokenScores":
        """Nothing is known yet."""
        likeliest = np.zeros((tokens, k), np.int32), np.full((tokens, k), np.nan, np.float32)
        return cls(np.full(tokens, np.nan, np.float32), *likeliest)

    def padded(self, tokens: int) -> "TokenScores":
        """These, followed by tokens without scores up to a total of `tokens`."""
        rest = self.blank(tokens - len(self.logprobs), self.topk_ids.shape[1])
        return TokenScores(*(np.concatenate([vars(self)[name], vars(rest)[name]]) for name in vars(self)))


def checked_scores(
    answer: ServerScores, ids: NDArray[Any], wanted: NDArray[np.intp], first: int, *, k: int, vocabulary: int
) -> TokenScores:
    """The scores of the tokens `ids` [T] at the places `wanted`. `first`: place of the answer's first token;
    `vocabulary`: the policy's number of tokens. Raises InfraError for an answer to another request."""
    scores, rows = TokenScores.blank(len(ids), k), wanted - first
    try:
        if len(answer.given) != len(ids) - first:
            raise InfraError(f"log-probs came for {len(answer.given)} tokens, and {len(ids) - first} were sent")
        read, scores.logprobs[wanted] = _columns([answer.given[row] for row in rows])
        if not np.array_equal(read, ids[wanted]):
            raise InfraError("log-probs came for other tokens than those that were sent")
        for row, place in zip(rows if k else (), wanted, strict=False):
            scores.topk_ids[place], scores.topk_logprobs[place] = _columns(answer.likeliest[row], k, vocabulary)
    except (TypeError, ValueError, IndexError, KeyError, OverflowError) as error:
        raise InfraError(f"the log-probs of an answer have another form: {error}") from error
    np.minimum(scores.logprobs, 0.0, out=scores.logprobs)
    np.minimum(scores.topk_logprobs, 0.0, out=scores.topk_logprobs)
    return scores


def _columns(
    entries: Sequence[Any], count: int | None = None, vocabulary: int = 1 << 31
) -> tuple[NDArray[Any], NDArray[Any]]:
    """(ids, log-probs) of entries, which must be so many and each another token. Raises InfraError."""
    ids = np.array([entry[1] for entry in entries], np.int64)
    logprobs = np.array([entry[0] for entry in entries], np.float32)
    if count is not None and len(set(ids.tolist())) != count:
        raise InfraError(f"{len(ids)} likeliest tokens came in place of {count}")
    if ids.size and not (ids.min() >= 0 and ids.max() < vocabulary):
        raise InfraError(f"token {ids.max()} is none of the policy's {vocabulary}")
    if not (np.isfinite(logprobs).all() and (logprobs <= LOGPROB_SLACK).all()):
        raise InfraError("a log-prob is no number of 0 or less")
    return ids, logprobs
