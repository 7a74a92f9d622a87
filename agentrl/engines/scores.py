"""Log-probs of given tokens under a teacher, as servers return them; checked before anything trains on them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl.core.errors import InfraError
from agentrl.trajectory.ledger import LOGPROB_SLACK

ServerScores = tuple[Sequence[Any], Sequence[Any]]
"""Unchecked: (log-prob, id, text or None) of each given token, and of the k likeliest in place of each; the second part
is empty where k is 0."""


class TokenScores(NamedTuple):
    """A teacher's log-probs of T tokens, each after those before it; NaN where they are not needed."""

    logprobs: NDArray[np.float32]
    """[T]."""
    topk_ids: NDArray[np.int32]
    """[T, k]; the likeliest tokens in place of each token."""
    topk_logprobs: NDArray[np.float32]
    """[T, k]."""


def checked_scores(
    answer: ServerScores, ids: NDArray[Any], wanted: NDArray[np.intp], *, k: int, vocabulary: int
) -> TokenScores:
    """The scores of the tokens at the places `wanted`, the first of which the answer begins with, among `ids` [T].
    `vocabulary`: the policy's number of tokens. Raises InfraError for an answer to another request."""
    scores = TokenScores(
        np.full(len(ids), np.nan, np.float32),
        np.zeros((len(ids), k), np.int32),
        np.full((len(ids), k), np.nan, np.float32),
    )
    try:
        read, scores.logprobs[wanted] = _columns([answer[0][place - wanted[0]] for place in wanted], vocabulary)
        for place in wanted if k else ():
            tokens, logprobs = _columns(answer[1][place - wanted[0]], vocabulary)
            if len(set(tokens.tolist())) != k:
                raise InfraError(f"{len(tokens)} likeliest tokens came in place of {k}")
            scores.topk_ids[place], scores.topk_logprobs[place] = tokens, logprobs
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise InfraError(f"a teacher's log-probs have another form: {error}") from error
    if not np.array_equal(read, ids[wanted]):
        raise InfraError("a teacher's log-probs are those of other tokens than it was sent")
    return scores


def _columns(entries: Sequence[Any], vocabulary: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """(ids, log-probs) of entries. Raises InfraError for what is none."""
    ids = np.array([entry[1] for entry in entries], np.int64)
    logprobs = np.array([entry[0] for entry in entries], np.float32)
    if not (ids.min() >= 0 and ids.max() < vocabulary):
        raise InfraError(f"a teacher's token {ids.max()} is none of the policy's {vocabulary}")
    if not (np.isfinite(logprobs).all() and (logprobs <= LOGPROB_SLACK).all()):
        raise InfraError("a teacher's log-prob is no number of 0 or less")
    return ids, np.minimum(logprobs, 0.0)
