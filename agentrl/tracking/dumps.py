"""Trajectories on disk: one jsonl file a step, one trajectory a line, for a person and for a program.

Invariants:
- a file is whole or absent; writing it again replaces it, so a resumed run leaves what an unbroken one leaves;
- nothing that a model, a tool or a row holds keeps it from being written (see `writable`);
- tokens are written twice, as text by segment and as columns by token; the columns are the truth;
- its index (see `index`) is beside it, so that a viewer need not read all of it.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.core.atomic_files import write_atomic
from agentrl.core.errors import UserError
from agentrl.core.json_text import to_json
from agentrl.tracking.index import Index, Record
from agentrl.tracking.packed import (
    COMPACT,
    PackedTrajectory,
    TokenColumns,
    Values,
    packed,
    token_columns,
    trajectory_head,
)
from agentrl.tracking.text import Decode, TokenTexts
from agentrl.trajectory.ledger import Source
from agentrl.trajectory.trajectory import Trajectory

LOGPROB_DIGITS = 4

Advantages = Mapping[str, Sequence[Values]]
"""By trajectory key: one value a token, for each of its ledgers; a ledger that was not trained on has none."""


class Unwritable(Exception):
    """A dump cannot be written; the text is the reason."""


def write_trajectories(
    path: Path,
    step: int,
    trajectories: Iterable[Trajectory],
    decode: Decode | TokenTexts,
    advantages: Advantages | None = None,
) -> None:
    """Write the trajectories of `step` to `path`. `decode` turns token ids into text, special tokens included; as
    TokenTexts it remembers what it has decoded from one dump to the next."""
    write_packed(path, packed_trajectories(step, trajectories, advantages or {}), _token_texts(decode))


def packed_trajectories(
    step: int, trajectories: Iterable[Trajectory], advantages: Advantages
) -> Iterator[PackedTrajectory]:
    """The trajectories for `write_packed`, made one at a time."""
    return (packed(step, trajectory, advantages.get(trajectory.key, ())) for trajectory in trajectories)


def write_packed(path: Path, trajectories: Iterable[PackedTrajectory], texts: TokenTexts) -> None:
    """Write a dump and its index."""
    index = Index()
    write_atomic(path, _lines(trajectories, texts, index))
    index.save(path)


class Appended:
    """A dump of trajectories that come one at a time. It replaces a file of that name with the first one."""

    def __init__(self, path: Path, decode: Decode) -> None:
        self.path, self.count = path, 0
        self._texts, self._index = TokenTexts(decode), Index()

    def add(self, trajectory: Trajectory) -> None:
        """Write one more, and the index."""
        with self.path.open("a" if self.count else "w", encoding="utf-8", newline="") as file:
            file.writelines(_lines(packed_trajectories(0, [trajectory], {}), self._texts, self._index))
        self._index.save(self.path)
        self.count += 1


def reason(error: Exception) -> str:
    """Why a dump cannot be written."""
    if isinstance(error, Unwritable):
        return str(error)
    return error.strerror or str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


def load_trajectories(path: str | Path) -> list[Record]:
    """The records of a dump, as docs/tracking.md describes them. Raises UserError for a file that is none."""
    path = Path(path)
    try:
        with path.open(encoding="utf-8") as file:
            return [_parse(path, number, line) for number, line in enumerate(file, start=1)]
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror}; a dump is a file of rollout_data_dir or validation_data_dir"
        ) from None


def trajectory_record(
    step: int, trajectory: Trajectory, decode: Decode | TokenTexts, advantages: Sequence[Values] = ()
) -> Record:
    """A trajectory as one JSON-ready dict: first what a person asks for, the token columns last."""
    texts = _token_texts(decode)
    samples = [sample_record(columns, texts) for columns in token_columns(trajectory, advantages)]
    return trajectory_head(step, trajectory) | {"samples": samples}


def sample_record(tokens: TokenColumns, texts: TokenTexts) -> Record:
    """A ledger as text segments and columns."""
    widths: list[int] = []
    segments = list(_segments(tokens, texts, widths))
    columns = {
        "ids": tokens.ids.tolist(),
        "mask": tokens.mask.tolist(),
        "logprobs": _rounded(tokens.logprobs),
        "chars": widths,
    }
    if len(tokens.advantages):
        columns["advantages"] = _runs(tokens.advantages)
    return {"prompt_length": tokens.prompt_length, "segments": segments, "columns": columns}


def token_texts(sample: Record) -> list[str] | None:
    """The text of each token of a dumped sample; None in dumps that were written without."""
    if "chars" not in sample["columns"]:
        return None
    widths = iter(sample["columns"]["chars"])
    return [text for segment in sample["segments"] for text in _cut(segment["text"], islice(widths, segment["n"]))]


def _cut(text: str, widths: Iterable[int]) -> Iterator[str]:
    start = 0
    for width in widths:
        yield text[start : start + width]
        start += width


def _token_texts(decode: Decode | TokenTexts) -> TokenTexts:
    return decode if isinstance(decode, TokenTexts) else TokenTexts(decode)


def _rounded(values: NDArray[Any]) -> list[float]:
    rounded: list[float] = np.round(values.astype(np.float64), LOGPROB_DIGITS).tolist()
    return rounded


def _runs(values: NDArray[Any]) -> list[tuple[int, float]]:
    """(how many tokens, their value) in a row: most estimators give a whole turn the same advantage."""
    rounded = np.round(values.astype(np.float64), LOGPROB_DIGITS)
    return [(end - start, float(rounded[start])) for start, end in _spans(rounded)]


def _spans(*columns: NDArray[Any]) -> list[tuple[int, int]]:
    """The stretches [start, end) over which none of the columns changes."""
    size = len(columns[0])
    changes = np.zeros(max(size - 1, 0), dtype=np.bool_)
    for column in columns:
        changes |= column[1:] != column[:-1]
    return list(pairwise([0, *(changes.nonzero()[0] + 1).tolist(), size])) if size else []


def _segments(tokens: TokenColumns, texts: TokenTexts, widths: list[int]) -> Iterator[Record]:
    """Runs of tokens that share source, turn and weight version; the characters of each token go to `widths`."""
    before: list[int] = []
    for start, end in _spans(tokens.sources, tokens.turns, tokens.versions):
        ids, source = tokens.ids[start:end].tolist(), Source(tokens.sources[start])
        made_by_model, n = source is Source.MODEL, end - start
        pieces = texts.pieces(ids, before)
        widths.extend(map(len, pieces))
        mean = math.fsum(tokens.logprobs[start:end].tolist()) / n
        yield {
            "source": source.name.lower(),
            "turn": int(tokens.turns[start]),
            "n": n,
            "mask": int(made_by_model),
            "version": int(tokens.versions[start]) if made_by_model else None,
            "logprob": round(mean, LOGPROB_DIGITS) if made_by_model else None,
            "text": "".join(pieces),
        }
        before = ids


def _lines(trajectories: Iterable[PackedTrajectory], texts: TokenTexts, index: Index) -> Iterator[str]:
    for trajectory in trajectories:
        samples = [sample_record(columns, texts) for columns in trajectory.samples]
        line = f'{trajectory.head[:-1]},"samples":{to_json(samples, **COMPACT)}}}'
        index.add(json.loads(trajectory.head) | {"samples": samples}, len(line.encode()))
        yield line + "\n"


def _parse(path: Path, number: int, line: str) -> Record:
    try:
        record = json.loads(line)
        record["samples"], record["messages"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}, line {number}, is no trajectory; fix or remove that line") from None
    return record
