"""Finished conversations for supervised training: rows of a file as ledgers.

Invariant: a conversation that is too long is left out whole, and counted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from agentrl.chat import Chat, Ledger
from agentrl.config.schema.sft import SftData
from agentrl.data.files import paths, read_records
from agentrl.data.plain import plain
from agentrl.errors import UserError
from agentrl.plurals import plural

Messages = list[dict[str, Any]]


@dataclass
class Conversations:
    """Training samples, and how many were left out."""

    ledgers: list[Ledger]
    too_long: int


def read_conversations(
    data: SftData, chat: Chat, files: Any = None, *, limit: int = -1, what: str = "data.train_files"
) -> Conversations:
    """The first `limit` rows (-1: all) of `files` (data.train_files unless told) as ledgers; `what` names their key.

    Raises UserError naming the row that is none, or when none fits.
    """
    ledgers, too_long = [], 0
    for record, place in islice(_records(files or data.train_files, what), limit if limit >= 0 else None):
        ledger = _ledger(record, data, chat, place=place)
        if len(ledger) > data.max_length:
            too_long += 1
        else:
            ledgers.append(ledger)
    if not ledgers:
        raise UserError(
            f"{what}: none of {plural(too_long, 'conversation')} fits into data.max_length={data.max_length}; raise it"
        )
    return Conversations(ledgers, too_long)


def _records(files: Any, what: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Rows, and where each stands."""
    for file in paths(files, what):
        for number, record in enumerate(read_records(file), start=1):
            yield record, f"{file}:{number}"


def _ledger(record: dict[str, Any], data: SftData, chat: Chat, *, place: str) -> Ledger:
    messages = _messages(record, data, place)
    tools = plain(record.get(data.tools_key)) or None
    try:
        return chat.transcript(chat.see(messages), tools)
    except UserError as error:
        raise UserError(f"{place}: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:  # someone else's data
        raise UserError(f"{place}: the messages are not OpenAI-style: {type(error).__name__} {error}") from error


def _messages(record: dict[str, Any], data: SftData, place: str) -> Sequence[dict[str, Any]]:
    """A whole conversation, or a question and its answer."""
    messages = plain(record.get(data.messages_key))
    if isinstance(messages, list) and messages:
        return messages
    prompt, response = plain(record.get(data.prompt_key)), plain(record.get(data.response_key))
    if messages is None and prompt and isinstance(response, str):
        question: Messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return [*question, {"role": "assistant", "content": response}]
    raise UserError(
        f"{place} has no messages under {data.messages_key!r}, nor {data.prompt_key!r} and {data.response_key!r}; "
        "set data.messages_key, or data.prompt_key and data.response_key"
    )
