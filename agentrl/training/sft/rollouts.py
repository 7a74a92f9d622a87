"""Rollouts as training samples: trajectories that a run recorded, and answers of `agentrl generate`.

Invariants: only those with a reward of at least `data.min_reward` are trained on, and none that an infrastructure error
ended; a recorded trajectory is trained on exactly the tokens that were sampled.
"""

import json
from collections.abc import Iterator
from typing import Any

from agentrl.chat import Chat
from agentrl.config.schema.sft import SftData
from agentrl.core.errors import UserError
from agentrl.data.plain import plain
from agentrl.tracking.dumps.text import TokenTexts
from agentrl.training.sft.custom_conversations import recorded_ledger
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.trajectory import Outcome

Record = dict[str, Any]


def is_trajectory(record: Record) -> bool:
    """Whether a row is a trajectory that `trainer.rollout_data_dir` or `agentrl rollout` recorded."""
    return "samples" in record and "outcome" in record


def is_answered(record: Record) -> bool:
    """Whether a row is one of `agentrl generate`: a prompt with several scored answers."""
    return "responses" in record and "scores" in record


def trajectory_ledgers(record: Record, data: SftData, chat: Chat, where: str) -> Iterator[Ledger | None]:
    """Its ledgers; None for each that is not trained on. Raises UserError."""
    bar = _bar(data, where)
    failed = record["outcome"] == Outcome.INFRA_ERROR.value
    try:
        if any(part.get("type") != "text" for message in record["messages"] for part in _parts(message)):
            raise UserError(f"{where}: recorded trajectories with images cannot be trained on")
        sides = record.get("side_rewards")
        for i, sample in enumerate(record["samples"]):
            reward = sides[record["sides"][i]] if sides else record["reward"]  # in a game with several sides: its own
            good = not failed and _at_least(reward, bar)
            yield _ledger(sample, chat, where) if good else None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:  # the user's file
        raise UserError(f"{where} is no recorded trajectory: {type(error).__name__} {error}") from error


def answered(record: Record, data: SftData, where: str) -> Iterator[Record | None]:
    """Its conversations as rows of `messages` and `tools`; None for each that is not trained on. Raises UserError."""
    bar = _bar(data, where)
    prompt, answers, scores = (_nested(record.get(name)) for name in ("prompt", "messages", "scores"))
    if not (isinstance(prompt, list) and isinstance(answers, list) and isinstance(scores, list)):
        raise UserError(f"{where} has responses and scores, but no lists of prompt, messages and scores beside them")
    for answer, score in zip(answers, scores, strict=False):
        chosen = {data.messages_key: [*prompt, *answer], data.tools_key: _nested(record.get("tools"))}
        yield chosen if _at_least(score, bar) else None


def _bar(data: SftData, where: str) -> float:
    if data.min_reward is None:
        raise UserError(f"{where} is a rollout: set data.min_reward to the least reward of those to train on")
    return data.min_reward


def _at_least(reward: Any, bar: float) -> bool:
    return isinstance(reward, int | float) and reward >= bar


def _parts(message: Record) -> list[Record]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _nested(value: Any) -> Any:
    """A column of lists; parquet has what is nested as JSON text."""
    return json.loads(value) if isinstance(value, str) and value[:1] in "[{" else plain(value)


def _ledger(sample: Record, chat: Chat, where: str) -> Ledger | None:
    ids, mask = sample["columns"]["ids"], sample["columns"]["mask"]
    if len(ids) != len(mask) or not all(0 <= token < len(chat.tokenizer) for token in ids):
        raise UserError(f"{where}: the recorded tokens are not tokens of model.path")
    _check_tokenizer(sample, chat, where)
    return recorded_ledger(ids, [False, *map(bool, mask[1:])]) if any(mask[1:]) else None


def _check_tokenizer(sample: Record, chat: Chat, where: str) -> None:
    first = sample["segments"][0]
    texts = TokenTexts(lambda ids: str(chat.tokenizer.decode(list(ids), skip_special_tokens=False)))
    if "".join(texts.pieces(sample["columns"]["ids"][: first["n"]])) != first["text"]:
        raise UserError(f"{where}: another tokenizer than that of model.path made the recorded tokens")
