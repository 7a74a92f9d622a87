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
    try:
        rows = [[answer[0][i], *(answer[1][i] if k else ())] for i in wanted - wanted[0]]
        table = np.array([[entry[:2] for entry in row] for row in rows], np.float64)
        found, tokens = np.moveaxis(table, -1, 0)
        whole = table.shape == (len(wanted), 1 + k, 2) and bool(np.isfinite(table).all())
        fits = whole and found.max() <= LOGPROB_SLACK and tokens.min() >= 0 and tokens.max() < vocabulary
        fits = fits and (tokens[:, 0] == ids[wanted]).all() and np.diff(np.sort(tokens[:, 1:])).all()
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise InfraError(f"a teacher's log-probs have another form: {error}") from error
    if not fits:
        raise InfraError(f"a teacher's log-probs are not those of the tokens sent, with {k} others of {vocabulary}")
    logprobs = np.full((len(ids), 1 + k), np.nan, np.float32)
    topk_ids = np.zeros((len(ids), k), np.int32)
    logprobs[wanted], topk_ids[wanted] = np.minimum(found, 0.0), tokens[:, 1:]
    return TokenScores(logprobs[:, 0], topk_ids, logprobs[:, 1:])
