"""Finished conversations for supervised training: rows of a file as ledgers.

Invariant: a conversation longer than `data.max_length` is left out and counted, truncated, or an error, by
`data.truncation`.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from agentrl.chat import Chat
from agentrl.config.schema.sft import SftData
from agentrl.core.errors import UserError, plural
from agentrl.core.numbers import limit_of
from agentrl.data.dataset import split_files
from agentrl.data.files import paths, read_records
from agentrl.data.media import with_media
from agentrl.data.overlong import truncate
from agentrl.data.plain import mapping, plain
from agentrl.training.sft.custom_conversations import custom_ledgers, token_ledger
from agentrl.training.sft.rollouts import answered, is_answered, is_trajectory, trajectory_ledgers
from agentrl.trajectory.ledger import NO_VERSION, Ledger, Source

Record = dict[str, Any]
Messages = list[dict[str, Any]]

COLUMNS = ("ids", "mask", "logprobs", "sources", "turns", "versions")
"""The token columns of a ledger."""


@dataclass
class Conversations:
    """Training samples, and how many were left out."""

    ledgers: list[Ledger]
    too_long: int
    below: int = 0
    """Rollouts with a reward under `data.min_reward`, or none."""


def read_conversations(
    data: SftData, chat: Chat, files: Any = None, *, limit: int = -1, what: str = "data.train_files"
) -> Conversations:
    """The first `limit` rows (-1 or 0: all) of `files` (default: data.train_files) as ledgers; `what`: their key in
    errors.

    Raises UserError for a row that is no conversation, and when no row fits.
    """
    found = Conversations([], 0)
    if sources := split_files(files or data.train_files)[1]:
        raise UserError(f"{what}: {sources[0]} makes prompts without answers; name files of conversations")
    read = custom_ledgers if data.custom_cls.path else _ledgers
    rows = islice(read(data, chat, files or data.train_files, what), limit_of(limit))
    for whole, where in rows:
        ledger = whole and _fitted(whole, data, where=where)
        if ledger:
            found.ledgers.append(ledger)
        else:
            found.below += whole is None
            found.too_long += whole is not None
    if not found.ledgers:
        raise UserError(_nothing_left(found, data, what))
    return found


def _nothing_left(found: Conversations, data: SftData, what: str) -> str:
    if not found.too_long:
        return f"{what}: none of {plural(found.below, 'rollout')} has a reward of data.min_reward={data.min_reward}"
    count = plural(found.too_long, "conversation")
    return f"{what}: none of {count} fits into data.max_length={data.max_length}; raise it"


def _ledgers(data: SftData, chat: Chat, files: Any, what: str) -> Iterator[tuple[Ledger | None, str]]:
    """Rows as ledgers, each with its file and line; None: a rollout that is not trained on."""
    for file in paths(files, what):
        for number, record in enumerate(read_records(file), start=1):
            where = f"{file}:{number}"
            yield from ((ledger, where) for ledger in _of_row(record, data, chat, where))


def _of_row(record: Record, data: SftData, chat: Chat, where: str) -> Iterator[Ledger | None]:
    if is_trajectory(record):
        yield from trajectory_ledgers(record, data, chat, where)
    elif "input_ids" in record:
        yield token_ledger(record, len(chat.tokenizer), where)
    elif is_answered(record):
        rows = answered(record, data, where)
        yield from (None if row is None else _ledger(row, data, chat, where=where) for row in rows)
    else:
        yield _ledger(record, data, chat, where=where)


def _ledger(record: Record, data: SftData, chat: Chat, *, where: str) -> Ledger:
    whole = record.get(data.messages_key) is not None if data.conversations is None else data.conversations
    messages = _messages(record, data, where) if whole else _pair(record, data, where)
    chat = chat.with_kwargs(**_thinking(record, data, where))
    tools = plain(record.get(data.tools_key)) or None
    try:
        messages = [{"content": "", **message} for message in messages]
        messages = with_media(messages, record, data.media_keys, where)
        ledger = chat.transcript(chat.see(messages), tools, verbatim=not whole)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:  # the user's data
        raise UserError(f"{where}: the messages are not OpenAI-style: {type(error).__name__} {error}") from error
    if not ledger.model_tokens:
        raise UserError(f"{where}: no assistant message is trained on; each has loss_mask 0")
    return ledger


def _messages(record: Record, data: SftData, where: str) -> Messages:
    """The messages of a whole conversation."""
    messages = plain(record.get(data.messages_key))
    if not isinstance(messages, list) or not messages:
        raise UserError(f"{where} has no messages under {data.messages_key!r}; set data.messages_key")
    for message in messages:
        if isinstance(message, dict) and message.get("role") != "assistant" and message.get("loss_mask"):
            raise UserError(f"{where}: a {message.get('role')} message has loss_mask 1; only the assistant is trained")
    return messages


def _pair(record: Record, data: SftData, where: str) -> Messages:
    """The messages of a question and its answer."""
    if data.prompt_key not in record or data.response_key not in record:
        either = "" if data.conversations is False else f"messages under {data.messages_key!r}, nor "
        raise UserError(
            f"{where} has no {either}{data.prompt_key!r} and {data.response_key!r}; "
            f"set {'data.messages_key, or ' if either else ''}data.prompt_key and data.response_key"
        )
    prompt = _nested_value(record, data.prompt_key, data.prompt_dict_keys, f"{where}: data.prompt_dict_keys")
    response = _nested_value(record, data.response_key, data.response_dict_keys, f"{where}: data.response_dict_keys")
    if not prompt or not isinstance(prompt, str | list):
        raise UserError(f"{where}: {data.prompt_key!r} holds neither text nor messages; data.prompt_dict_keys leads on")
    if not isinstance(response, str):
        raise UserError(f"{where}: {data.response_key!r} holds no text; data.response_dict_keys leads on")
    question: Messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return [*question, {"role": "assistant", "content": response}]


def _nested_value(record: Record, key: str, names: Sequence[str] | None, what: str) -> Any:
    """A column's value, or the nested value at the keys `names`; a list of one stands for its item, as in verl."""
    value = plain(record[key])
    for name in names or ():
        while isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, str):  # an object written as JSON text
            with suppress(ValueError):
                value = mapping(value)
        if not isinstance(value, dict) or name not in value:
            held = f"has {', '.join(value)}" if isinstance(value, dict) else f"is a {type(value).__name__}"
            raise UserError(f"{what}: there is no {name!r} in {key!r}, which {held}")
        value = value[name]
    return value


def _thinking(record: Record, data: SftData, where: str) -> dict[str, bool]:
    """The chat template's `enable_thinking` for a row; empty: unset."""
    value = plain(record.get(data.enable_thinking_key))
    value = data.enable_thinking_default if value is None else value
    if value is None or value != value:  # NaN: an empty cell in pandas
        return {}
    if value not in (True, False):
        raise UserError(f"{where}: {data.enable_thinking_key!r} is {value!r}; it must be true or false")
    return {"enable_thinking": bool(value)}


def _fitted(ledger: Ledger, data: SftData, *, where: str) -> Ledger | None:
    """The ledger, truncated if too long; None where no token to train on is left. Raises UserError."""
    size, limit, side = len(ledger), data.max_length, data.truncation
    if size <= limit or side is None:
        return ledger if size <= limit else None
    if side == "error":
        raise UserError(
            f"{where}: a conversation of {size} tokens is over data.max_length={limit}; raise it, or set "
            "data.truncation=left, right or middle, or null to leave such rows out"
        )
    if ledger.media or ledger.teacher >= 0:
        raise UserError(
            f"{where}: a conversation of {size} tokens with images or a teacher is over data.max_length={limit} and "
            "cannot be cut; raise it, or set data.truncation=null to leave such rows out"
        )
    kept = _select(ledger, truncate(range(size), limit, side))
    return kept if kept.model_tokens else None


def _select(ledger: Ledger, kept: Sequence[int]) -> Ledger:
    """The `kept` tokens. The first is part of the prompt, because no token before it predicts it."""
    columns: dict[str, Any] = {name: getattr(ledger, name).numpy()[list(kept)].tolist() for name in COLUMNS}
    part = Ledger(**columns)
    part.prompt_length = max(1, part.sources.count(Source.PROMPT))
    part.mask[0], part.logprobs[0], part.sources[0], part.versions[0] = 0, 0.0, Source.PROMPT, NO_VERSION
    return part
