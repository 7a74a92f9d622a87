"""Drops or cuts prompts that are too long.

Lengths are in tokens, as the chat template with its tools renders the prompt.
"""

import logging
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from heapq import nlargest
from itertools import chain, islice
from typing import Any

from agentrl.core.errors import InfraError, UserError, plural
from agentrl.data.lazy import ChosenRows, JoinedRows
from agentrl.data.rows import FileRows
from agentrl.trajectory.row import Row

log = logging.getLogger(__name__)

MEASURED = 256
"""Rows whose tokens are counted before a run."""
MOST_SIZES = 100_000
"""Rows whose text is measured to find them."""
TRUNCATIONS = ("error", "left", "right", "middle")


def filter_overlong(
    rows: Sequence[Row], length: Callable[[Row], int], limit: int, *, workers: int = 1
) -> Sequence[Row]:
    """The rows whose `length` is at most `limit`; logs how many were dropped.

    With `workers` > 1 processes share the work. Raises UserError when nothing is left.
    """
    lengths = list(_lengths(rows, length, min(workers, len(rows))))
    indices = [i for i, tokens in enumerate(lengths) if tokens <= limit]
    dropped = len(rows) - len(indices)
    if not indices:
        raise UserError(
            f"data.max_prompt_length={limit} drops all of {plural(len(rows), 'row')}; raise it: the shortest prompt "
            f"has {min(lengths)} tokens"
        )
    if dropped:
        first = rows[next(i for i, tokens in enumerate(lengths) if tokens > limit)].uid
        where = f"data.max_prompt_length={limit} tokens (first: {first})"
        log.warning("dropped %d of %d rows: prompts over %s", dropped, len(rows), where)
    return ChosenRows(rows, indices) if dropped else rows


def check_overlong(rows: Sequence[Row], length: Callable[[Row], int], limit: int, truncation: str) -> None:
    """Raises UserError, naming the first one, where rows are over `limit` and `truncation` is error; else logs them.

    Only the MEASURED rows with the longest text are measured: tokens are not counted in a large file.
    """
    sizes = enumerate(islice(_sizes(rows), MOST_SIZES))
    longest = sorted(index for index, _ in nlargest(MEASURED, sizes, key=lambda item: item[1]))
    found = [(row.uid, tokens) for i in longest if (tokens := _length_of(row := rows[i], length)) > limit]
    if not found:
        return
    uid, tokens = found[0]
    others = f", and so have {len(found) - 1} more" if len(found) > 1 else ""
    line = f"{uid} has a prompt of {tokens} tokens{others}; data.max_prompt_length={limit}"
    if truncation == "error":
        raise UserError(
            f"{line}: raise it to {max(tokens for _, tokens in found)}, or set data.filter_overlong_prompts=true, or "
            "data.truncation=left, right or middle"
        )
    log.warning("%s, data.truncation=%s cuts them", line, truncation)


def _sizes(rows: Sequence[Row]) -> Iterator[int]:
    if isinstance(rows, JoinedRows):
        return chain.from_iterable(map(_sizes, rows.parts))
    prompts = (prompt for _, prompt in rows.prompts()) if isinstance(rows, FileRows) else (row.prompt for row in rows)
    return (sum(len(str(message["content"])) for message in prompt) for prompt in prompts)


def _length_of(row: Row, length: Callable[[Row], int]) -> int:
    """Tokens of its prompt; 0 where it cannot be measured, which the rollout reports, or a loop of its own reads it."""
    if row.agent_name is not None or row.scores_itself:
        return 0
    try:
        return length(row)
    except (UserError, InfraError):
        return 0


def truncate(ids: Sequence[int], limit: int, side: str) -> list[int]:
    """At most `limit` ids: without the beginning (left), the end (right), or the middle; error raises UserError."""
    ids = list(ids)
    if side not in TRUNCATIONS:
        raise UserError(f"data.truncation={side} is unknown; choose from {', '.join(TRUNCATIONS)}")
    if len(ids) <= limit:
        return ids
    if side == "error":
        raise UserError(
            f"a prompt of {len(ids)} tokens is over data.max_prompt_length={limit}; raise it, or set "
            "data.filter_overlong_prompts=true, or data.truncation=left, right or middle"
        )
    head = {"left": 0, "right": limit, "middle": limit // 2}[side]
    return ids[:head] + ids[len(ids) - (limit - head) :]


_work: dict[str, Any] = {}
"""In a worker: the rows and their `length`."""


def _lengths(rows: Sequence[Row], length: Callable[[Row], int], workers: int) -> Iterator[int]:
    if workers <= 1:
        yield from (length(row) for row in rows)
        return
    # Forked, so that rows and tokenizer are inherited: neither need survive pickling.
    context = multiprocessing.get_context("fork")
    work = {"rows": rows, "length": length}
    with context.Pool(workers, initializer=_work.update, initargs=(work,)) as pool:
        yield from pool.imap(_length_at, range(len(rows)), chunksize=max(1, len(rows) // (workers * 8)))


def _length_at(index: int) -> int:
    tokens: int = _work["length"](_work["rows"][index])
    return tokens
