"""Trajectories on disk: one jsonl file a step, one trajectory a line, for a person and for a program.

Invariants:
- a file is whole or absent; writing it again replaces it, so a resumed run leaves what an unbroken one leaves;
- tokens are written twice, as text by segment and as columns by token; the columns are the truth.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from agentrl.chat.ledger import Ledger, Source
from agentrl.errors import UserError
from agentrl.rollout.trajectory import Trajectory
from agentrl.tracking.files import write_atomic
from agentrl.tracking.text import Decode, continuation

Record = dict[str, Any]

LOGPROB_DIGITS = 4


def write_trajectories(path: Path, step: int, trajectories: Sequence[Trajectory], decode: Decode) -> None:
    """Write the trajectories of `step` to `path`. `decode` turns token ids into text, special tokens included."""
    write_atomic(path, (_json(trajectory_record(step, trajectory, decode)) + "\n" for trajectory in trajectories))


def load_trajectories(path: Path) -> list[Record]:
    """The records of a dump, as docs/tracking.md describes them. Raises UserError for a file that is none."""
    try:
        with path.open(encoding="utf-8") as file:
            return [_parse(path, number, line) for number, line in enumerate(file, start=1)]
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror}; a dump is a file of rollout_data_dir or validation_data_dir"
        ) from None


def trajectory_record(step: int, trajectory: Trajectory, decode: Decode) -> Record:
    """A trajectory as one JSON-ready dict: first what a person asks for, the token columns last."""
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
        "turn_rewards": [asdict(reward) for reward in trajectory.turn_rewards],
        "tool_rewards": trajectory.tool_rewards,
        "interaction_score": trajectory.interaction_score,
        "ground_truth": row.ground_truth,
        "prompt": row.prompt,
        "messages": trajectory.messages,
        "tool_calls": [asdict(call) for call in trajectory.tool_calls],
        "spans": [asdict(span) for span in trajectory.spans],
        "extra": trajectory.extra,
        "samples": [sample_record(ledger, decode) for ledger in trajectory.ledgers],
    }


def sample_record(ledger: Ledger, decode: Decode) -> Record:
    """A ledger as text segments and columns."""
    return {
        "prompt_length": ledger.prompt_length,
        "segments": list(_segments(ledger, decode)),
        "columns": {
            "ids": ledger.ids,
            "mask": ledger.mask,
            "logprobs": [round(logprob, LOGPROB_DIGITS) for logprob in ledger.logprobs],
        },
    }


def _segments(ledger: Ledger, decode: Decode) -> Iterator[Record]:
    """Runs of tokens that share source, turn and weight version."""
    before: list[int] = []
    start = 0
    columns = zip(ledger.sources, ledger.turns, ledger.versions, strict=True)
    for (source, turn, version), run in groupby(columns):
        n = sum(1 for _ in run)
        ids, logprobs = ledger.ids[start : start + n], ledger.logprobs[start : start + n]
        made_by_model = source == Source.MODEL
        yield {
            "source": Source(source).name.lower(),
            "turn": turn,
            "n": n,
            "mask": int(made_by_model),
            "version": version if made_by_model else None,
            "logprob": round(math.fsum(logprobs) / n, LOGPROB_DIGITS) if made_by_model else None,
            "text": continuation(before, ids, decode),
        }
        before, start = ids, start + n


def _json(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """Users put what they like into rows, rewards and messages: arrays become lists, strangers their repr."""
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _parse(path: Path, number: int, line: str) -> Record:
    try:
        record = json.loads(line)
        record["samples"], record["messages"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}, line {number}, is no trajectory; mend or remove that line") from None
    return record
