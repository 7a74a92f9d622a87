"""A trajectory as one line of JSON, for a person and for a program.

Invariants:
- nothing that a model, a tool or a row holds keeps it from being written (see `core.json_text`);
- tokens are written twice, as text by segment and as columns by token; the columns are the truth;
- the token columns are arrays until orjson prints them: a dump is written in a thread of the run, and Python that
  handles tokens one by one there would slow the step down.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise, repeat
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from agentrl.core.json_text import listed, to_json
from agentrl.tracking.dumps.text import Decode, TokenTexts
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.medium import Medium
from agentrl.trajectory.outline import Lines
from agentrl.trajectory.trajectory import Trajectory

Record = dict[str, Any]
Values = Sequence[float] | NDArray[Any] | Lines
"""One value a token; empty for a ledger that was not trained on."""

LOGPROB_DIGITS = 4
COMPACT: dict[str, Any] = {"separators": (",", ":")}


def trajectory_record(step: int, trajectory: Trajectory, decode: Decode) -> Record:
    """The record that `load_trajectories` reads for a trajectory: what a person asks for first, token columns last."""
    record: Record = json.loads(trajectory_line(step, trajectory, TokenTexts(decode)))
    return record


def trajectory_line(step: int, trajectory: Trajectory, texts: TokenTexts) -> bytes:
    """The line of a trajectory, without its end."""
    columns = chain(trajectory.advantages, repeat(()))
    samples = [_sample(*each, texts) for each in zip(trajectory.ledgers, columns, strict=False)]
    head = to_json(_head(step, trajectory), _plain, **COMPACT)
    return f'{head[:-1]},"samples":'.encode() + _encoded(samples) + b"}"


def token_texts(sample: Record) -> list[str]:
    """The text of each token of a dumped sample."""
    widths = iter(sample["columns"]["chars"])
    return [text for segment in sample["segments"] for text in _cut(segment["text"], islice(widths, segment["n"]))]


def _head(step: int, trajectory: Trajectory) -> Record:
    """Everything but the samples: first what a person asks for."""
    row = trajectory.row
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
        **_sides(trajectory),
        "turn_rewards": [vars(reward) for reward in trajectory.turn_rewards],
        "tool_rewards": trajectory.tool_rewards,
        "interaction_score": trajectory.interaction_score,
        "ground_truth": row.ground_truth,
        "prompt": trajectory.messages[: len(row.prompt)] or row.prompt,  # its images as thumbnails
        "messages": trajectory.messages,
        "tool_calls": [vars(call) for call in trajectory.tool_calls],
        "spans": [vars(span) for span in trajectory.spans],
        "extra": trajectory.extra,
    }


def _sides(trajectory: Trajectory) -> Record:
    """For a game that the policy plays several sides of: the side of each sample, and each side's final reward."""
    if not trajectory.side_rewards:
        return {}
    return {"sides": [ledger.side for ledger in trajectory.ledgers], "side_rewards": trajectory.side_rewards}


def _sample(ledger: Ledger, advantages: Values, texts: TokenTexts) -> Record:
    """A ledger as text segments and columns."""
    chars: list[int] = []
    segments = list(_segments(ledger, texts, chars))
    columns: dict[str, Any] = {
        "ids": ledger.ids.numpy(),
        "mask": ledger.mask.numpy(),
        "logprobs": _rounded(ledger.logprobs.numpy()),
        "chars": chars,
    }
    if ledger.teacher_logprobs is not None:
        columns["teacher_logprobs"] = _rounded(ledger.teacher_logprobs)  # NaN is null in JSON
    if ledger.teacher_topk_ids is not None:
        columns["teacher_choices"] = ledger.teacher_topk_ids[:, 0]
        others = columns["teacher_choices"][(columns["teacher_choices"] != columns["ids"]) & (columns["mask"] == 1)]
        columns["teacher_texts"] = {str(token): texts.decode([token]) for token in np.unique(others).tolist()}
    if len(advantages):
        columns["advantages"] = _runs(_rounded(np.asarray(advantages)))
    return {"prompt_length": ledger.prompt_length, "segments": segments, "columns": columns}


def _segments(ledger: Ledger, texts: TokenTexts, chars: list[int]) -> Iterator[Record]:
    """Runs of tokens that share source, turn and weight version; the characters of each token go to `chars`."""
    ids, logprobs = ledger.ids.numpy(), ledger.logprobs.numpy()
    sources, turns, versions = ledger.sources.numpy(), ledger.turns.numpy(), ledger.versions.numpy()
    before: list[int] = []
    for start, end in _spans(sources, turns, versions):
        segment, source = ids[start:end].tolist(), Source(sources[start])
        pieces, sampled = texts.pieces(segment, before), source is Source.MODEL
        chars.extend(map(len, pieces))
        yield {
            "source": source.name.lower(),
            "turn": int(turns[start]),
            "n": len(segment),
            "mask": int(sampled),
            "version": int(versions[start]) if sampled else None,
            "logprob": round(float(logprobs[start:end].mean()), LOGPROB_DIGITS) if sampled else None,
            "text": "".join(pieces),
        }
        before = segment


def _rounded(values: NDArray[Any]) -> NDArray[Any]:
    return np.round(values.astype(np.float64), LOGPROB_DIGITS)


def _runs(values: NDArray[Any]) -> list[tuple[int, float]]:
    """(how many tokens, their value) in a row: most estimators give a whole turn the same advantage."""
    return [(end - start, float(values[start])) for start, end in _spans(values)]


def _spans(*columns: NDArray[Any]) -> list[tuple[int, int]]:
    """The stretches [start, end) over which none of the columns changes."""
    size = len(columns[0])
    changes = np.zeros(max(size - 1, 0), dtype=np.bool_)
    for column in columns:
        changes |= column[1:] != column[:-1]
    return list(pairwise([0, *(changes.nonzero()[0] + 1).tolist(), size])) if size else []


def _cut(text: str, widths: Iterable[int]) -> Iterator[str]:
    start = 0
    for width in widths:
        yield text[start : start + width]
        start += width


def _encoded(samples: list[Record]) -> bytes:
    try:
        return orjson.dumps(samples, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # half a surrogate pair, of a tokenizer written in Python
        return to_json(samples, _plain, **COMPACT).encode()


def _plain(value: Any) -> Any:
    """Users put what they like into rows, rewards and messages: arrays become lists, strangers their repr."""
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, Medium):
        return value.thumbnail()
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return listed(value)
