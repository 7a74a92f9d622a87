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

from agentrl.core.atomic_files import write_atomic
from agentrl.core.errors import UserError
from agentrl.core.json_text import to_json
from agentrl.tracking.index import Index, Record
from agentrl.tracking.text import Decode, TokenTexts
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.medium import Medium
from agentrl.trajectory.trajectory import Trajectory

LOGPROB_DIGITS = 4

Advantages = Mapping[str, Sequence[Sequence[float]]]
"""By trajectory key: one value a token, for each of its ledgers; a ledger that was not trained on has none."""


def write_trajectories(
    path: Path,
    step: int,
    trajectories: Sequence[Trajectory],
    decode: Decode | TokenTexts,
    advantages: Advantages | None = None,
) -> None:
    """Write the trajectories of `step` to `path`. `decode` turns token ids into text, special tokens included; as
    TokenTexts it remembers what it has decoded from one dump to the next."""
    texts, index = _token_texts(decode), Index()
    write_atomic(path, _lines(step, trajectories, texts, advantages or {}, index))
    index.save(path)


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
    step: int, trajectory: Trajectory, decode: Decode | TokenTexts, advantages: Sequence[Sequence[float]] = ()
) -> Record:
    """A trajectory as one JSON-ready dict: first what a person asks for, the token columns last."""
    row = trajectory.row
    texts = _token_texts(decode)
    return {
        "step": step,
        "key": trajectory.key,
        "uid": row.uid,
        "sample": trajectory.sample,
        "data_source": row.data_source,
        "reward": trajectory.reward,
        "reward_extra": trajectory.reward_extra,
        "outcome": trajectory.outcome.value,
        "finish": trajectory.finish,
        "error": trajectory.error,
        "turns": trajectory.turns,
        "user_turns": trajectory.user_turns,
        "turn_rewards": [vars(reward) for reward in trajectory.turn_rewards],
        "tool_rewards": trajectory.tool_rewards,
        "interaction_score": trajectory.interaction_score,
        "ground_truth": row.ground_truth,
        "prompt": trajectory.messages[: len(row.prompt)] or row.prompt,  # its images as thumbnails
        "messages": trajectory.messages,
        "tool_calls": [vars(call) for call in trajectory.tool_calls],
        "spans": [vars(span) for span in trajectory.spans],
        "extra": trajectory.extra,
        "samples": [
            sample_record(ledger, texts, advantages[i] if i < len(advantages) else ())
            for i, ledger in enumerate(trajectory.ledgers)
        ],
    }


def sample_record(ledger: Ledger, texts: TokenTexts, advantages: Sequence[float] = ()) -> Record:
    """A ledger as text segments and columns."""
    widths: list[int] = []
    segments = list(_segments(ledger, texts, widths))
    columns = {
        "ids": ledger.ids,
        "mask": ledger.mask,
        "logprobs": _rounded(ledger.logprobs),
        "chars": widths,
    }
    if advantages:
        columns["advantages"] = _runs(advantages)
    return {"prompt_length": ledger.prompt_length, "segments": segments, "columns": columns}


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


def _rounded(values: Sequence[float]) -> list[float]:
    rounded: list[float] = np.round(np.asarray(values, dtype=np.float64), LOGPROB_DIGITS).tolist()
    return rounded


def _runs(values: Sequence[float]) -> list[tuple[int, float]]:
    """(how many tokens, their value) in a row: most estimators give a whole turn the same advantage."""
    rounded = _rounded(values)
    return [(end - start, rounded[start]) for start, end in _spans(rounded)]


def _spans(*columns: Sequence[float]) -> list[tuple[int, int]]:
    """The stretches [start, end) over which none of the columns changes."""
    table = np.array(columns)
    changes = (table[:, 1:] != table[:, :-1]).any(0).nonzero()[0] + 1
    return list(pairwise([0, *changes.tolist(), table.shape[1]])) if table.shape[1] else []


def _segments(ledger: Ledger, texts: TokenTexts, widths: list[int]) -> Iterator[Record]:
    """Runs of tokens that share source, turn and weight version; the characters of each token go to `widths`."""
    before: list[int] = []
    for start, end in _spans(ledger.sources, ledger.turns, ledger.versions):
        ids, source, version = ledger.ids[start:end], ledger.sources[start], ledger.versions[start]
        made_by_model, n = source == Source.MODEL, end - start
        pieces = texts.pieces(ids, before)
        widths.extend(map(len, pieces))
        mean = math.fsum(ledger.logprobs[start:end]) / n
        yield {
            "source": Source(source).name.lower(),
            "turn": ledger.turns[start],
            "n": n,
            "mask": int(made_by_model),
            "version": version if made_by_model else None,
            "logprob": round(mean, LOGPROB_DIGITS) if made_by_model else None,
            "text": "".join(pieces),
        }
        before = ids


def _lines(
    step: int, trajectories: Sequence[Trajectory], texts: TokenTexts, advantages: Advantages, index: Index
) -> Iterator[str]:
    for trajectory in trajectories:
        record = trajectory_record(step, trajectory, texts, advantages.get(trajectory.key, ()))
        line = to_json(record, _plain, separators=(",", ":"))
        index.add(record, len(line.encode()))
        yield line + "\n"


def _plain(value: Any) -> Any:
    """Users put what they like into rows, rewards and messages: arrays become lists, strangers their repr."""
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, Medium):
        return value.thumbnail()
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _parse(path: Path, number: int, line: str) -> Record:
    try:
        record = json.loads(line)
        record["samples"], record["messages"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}, line {number}, is no trajectory; fix or remove that line") from None
    return record
