"""Stored answers and their scores.

An answer is scored by the very code that scores a run's trajectories. It becomes a trajectory of one turn whose ledger
has one token for the whole answer; `Answers` is the vocabulary.
"""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from agentrl.config.schema import Data
from agentrl.config.schema.evaluation import EvalConfig, EvalData
from agentrl.core.errors import UserError
from agentrl.core.loop_thread import LoopThread
from agentrl.data import make_row
from agentrl.data.files import Record, paths, read_records
from agentrl.data.plain import plain
from agentrl.data.rows import prompt_column
from agentrl.rewards.function import names_function
from agentrl.rollout.building import sandbox_for, scorer
from agentrl.rollout.user_objects import NO_OBJECTS, UserObjects
from agentrl.tracking.estimates import RowScores, row_scores
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

BATCH = 4096  # answers that are scored together, to limit memory


@dataclass
class Answered:
    """A row and its answers."""

    row: Row
    answers: list[str]
    scores: list[float] | None
    """Stored scores, if the file has any."""


class Answers:
    """Stands in for a tokenizer: token i is the i-th answer."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, text: str) -> int:
        """The token of a new answer."""
        self.texts.append(text)
        return len(self.texts) - 1

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """The answers' text."""
        return "".join(self.texts[i] for i in ids)


def read_answers(data: EvalData) -> list[Answered]:
    """The rows of `data.path` with their answers. Raises UserError naming the row or column that is wrong."""
    return [
        answered(record, data, f"{file.name}:{number}")
        for file in paths(data.path, "data.path")
        for number, record in enumerate(read_records(file), start=1)
    ]


def answered(record: Record, data: EvalData, uid: str) -> Answered:
    """One row with its answers. Raises UserError naming the column that is wrong."""
    responses = plain(record.get(data.response_key))
    answers = [responses] if isinstance(responses, str) else responses
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        has = ", ".join(record)
        raise UserError(f"{uid}: {data.response_key!r} holds no answers (columns: {has}); set data.response_key")
    if data.reward_model_key != "reward_model" or "reward_model" in record:
        record = {**record, "reward_model": record.get(data.reward_model_key)}
    if prompt_column(record, data.prompt_key) not in record:
        record = {**record, data.prompt_key: "-"}  # an answer may be scored without its question
    row = make_row(record, uid, Data(prompt_key=data.prompt_key, reward_fn_key=data.reward_fn_key))
    scores = plain(record.get(data.score_key))
    fits = isinstance(scores, list) and len(scores) == len(answers)
    return Answered(row, answers, [float(score) for score in scores] if fits else None)


def scored(config: EvalConfig, rows: Sequence[Answered], objects: UserObjects = NO_OBJECTS) -> list[RowScores]:
    """Scores by the configured reward function, or the stored ones if none is set. Raises UserError."""
    threshold = config.evaluation.success_threshold
    if not names_function(config.reward) and rows and all(row.scores is not None for row in rows):
        return [_stored(row, threshold) for row in rows]
    with closing(LoopThread()) as runner:
        return runner.run(_score(config, rows, objects))


def _stored(row: Answered, threshold: float) -> RowScores:
    scores = row.scores or []
    return RowScores(row.row.data_source, scores, [score >= threshold for score in scores], uid=row.row.uid)


async def _score(config: EvalConfig, rows: Sequence[Answered], objects: UserObjects) -> list[RowScores]:
    answers, sandbox = Answers(), sandbox_for(config)
    trajectories = [[_trajectory(a.row, text, i, answers) for i, text in enumerate(a.answers)] for a in rows]
    judge = scorer(config, answers, sandbox, objects=objects)
    try:
        flat = [trajectory for group in trajectories for trajectory in group]
        for start in range(0, len(flat), BATCH):
            batch = flat[start : start + BATCH]
            judge.expect([trajectory.key for trajectory in batch])
            await asyncio.gather(*(judge.score(trajectory) for trajectory in batch))
    finally:
        await judge.close()
        await sandbox.close()
    return [row_scores(group, config.evaluation) for group in trajectories if group]


def _trajectory(row: Row, text: str, sample: int, answers: Answers) -> Trajectory:
    ledger = Ledger()
    ledger.append_prompt([answers.add("")])
    ledger.append_model([answers.add(text)], [0.0], turn=0, version=0)
    messages = [*row.prompt, {"role": "assistant", "content": text}]
    return Trajectory(row, f"eval/{row.uid}/{sample}", sample, messages=messages, ledgers=[ledger], turns=1)
