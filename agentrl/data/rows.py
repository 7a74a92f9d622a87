"""Creates rows from records in verl's format and its variants.

Invariant: a Row holds plain Python only, and its uid depends on nothing but the file's name and the record's number in
it (and how often the file was listed before), so that it is the same after a restart, a shuffle or a filter.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.core.errors import UserError
from agentrl.data.files import Record, Table, paths, read_records
from agentrl.data.lazy import LazyRows, distinct
from agentrl.data.media import MEDIA_KEYS, MediaKeys, with_media
from agentrl.data.plain import mapping, plain
from agentrl.trajectory.row import Row

DATA_SOURCE = "data_source"
"""The default `reward_fn_key`: the one column that may be missing."""

READ = {"data_source", "prompt", "ability", "reward_model", "extra_info", "agent_name", "tools_kwargs"}
READ |= {"interaction_kwargs", "multi_modal_data", "multi_modal_inputs"}
"""Columns with a field of their own in a Row, or too big to be kept."""


EXAMPLE = '{"prompt": "What is 2 + 3?", "ground_truth": "5"}'
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant"}
"""Roles of other formats -> roles here."""


class Rows(LazyRows):
    """Rows of several files, one after another, created on access."""

    def __init__(self, files: Sequence[Path], *, prompt_key: str, reward_fn_key: str, media_keys: MediaKeys) -> None:
        self.prompt_key = prompt_key
        self.media_keys = media_keys
        self.reward_fn_key = reward_fn_key
        self.parts = [(name, read_records(file)) for name, file in zip(_names(files), files, strict=True)]
        for (_, records), file in zip(self.parts, files, strict=True):
            _check_columns(records, file, prompt_key, reward_fn_key)

    def __len__(self) -> int:
        return sum(len(records) for _, records in self.parts)

    def prompts(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """(uid, messages) of every row, faster than whole rows. Raises UserError for the first row without a prompt."""
        for name, records in self.parts:
            for number, prompt in enumerate(_column(records, self.prompt_key), 1):
                uid = f"{name}:{number}"
                yield uid, _messages(prompt, f"{uid}: {self.prompt_key}")

    def agent_names(self) -> set[str]:
        """Names of agent loops in the rows."""
        return {str(name) for _, records in self.parts for name in _column(records, "agent_name") if name}

    def row(self, place: int) -> Row:
        for name, records in self.parts:
            if place < len(records):
                uid = f"{name}:{place + 1}"
                return make_row(
                    records[place],
                    uid,
                    prompt_key=self.prompt_key,
                    reward_fn_key=self.reward_fn_key,
                    media_keys=self.media_keys,
                )
            place -= len(records)
        raise IndexError(place)


def read_rows(
    files: str | Path | Sequence[str | Path],
    *,
    prompt_key: str = "prompt",
    reward_fn_key: str = DATA_SOURCE,
    media_keys: MediaKeys = MEDIA_KEYS,
    what: str = "data.train_files",
) -> Rows:
    """The rows of one or several parquet, json, jsonl or CSV files. Raises UserError, naming the config key `what`."""
    return Rows(paths(files, what), prompt_key=prompt_key, reward_fn_key=reward_fn_key, media_keys=media_keys)


def make_row(
    record: Mapping[str, Any], uid: str, *, prompt_key: str, reward_fn_key: str, media_keys: MediaKeys = MEDIA_KEYS
) -> Row:
    """One record as a Row. Raises UserError naming `uid` and the field that is wrong."""
    fields = {key: _field(record, key, uid) for key in ("reward_model", "extra_info")}
    extra_info = fields["extra_info"]
    for key in ("tools_kwargs", "interaction_kwargs"):
        # verl's own dataset class lifts them to the top; people write them as JSON text to escape struct columns
        if key in extra_info or record.get(key) is not None:
            extra_info[key] = _field(extra_info if key in extra_info else record, key, uid)
    known = {*READ, prompt_key, reward_fn_key, *media_keys.values()}
    if "ground_truth" in record:
        fields["reward_model"].setdefault("ground_truth", plain(record["ground_truth"]))
    return Row(
        uid=uid,
        prompt=with_media(_messages(record.get(prompt_key), f"{uid}: {prompt_key}"), record, media_keys, uid),
        data_source=str(plain(record.get(reward_fn_key)) or "unknown"),
        ability=plain(record.get("ability")),
        reward_model=fields["reward_model"],
        extra_info=extra_info,
        agent_name=plain(record.get("agent_name")),
        others={key: plain(value) for key, value in record.items() if key not in known},
    )


def _field(record: Mapping[str, Any], key: str, uid: str) -> dict[str, Any]:
    try:
        return mapping(record.get(key))
    except ValueError as error:
        raise UserError(f"{uid}: {key} is no object: {error}") from None


def _messages(value: Any, place: str) -> list[dict[str, Any]]:
    if isinstance(value, str) and value.strip():
        return [{"role": "user", "content": plain(value)}]
    messages = plain(value)
    if messages in (None, "", []) or isinstance(messages, str):
        raise UserError(f"{place} is empty: write the question there, or remove the row")
    if not isinstance(messages, list):
        raise UserError(
            f"{place} holds neither messages nor a string, but a {type(messages).__name__}: {str(messages)[:80]}"
        )
    for message in messages:
        _check_message(message, place)
        message.setdefault("content", "")  # dropped with the None values where there are only tool calls
    if not any(_says(message) for message in messages):
        raise UserError(f"{place} is empty: its messages have no content; write the question there, or remove the row")
    return messages


def _check_message(message: Any, place: str) -> None:
    if not isinstance(message, dict) or "role" not in message:
        shared = isinstance(message, dict) and {"from", "value"} <= message.keys()
        hint = (
            '; write {"role": "user", "content": ...}, for "from" and "value" are ShareGPT\'s names' if shared else ""
        )
        raise UserError(f"{place} holds something that is no message with a role: {str(message)[:80]}{hint}")
    if message["role"] in SHAREGPT_ROLES:
        right = SHAREGPT_ROLES[message["role"]]
        raise UserError(f"{place} has a message with the role {message['role']!r}: write {right!r}")
    content = message.get("content", "")
    if not isinstance(content, str | list):
        raise UserError(f"{place} has a message whose content is {str(content)[:80]!r}: write text")


def _says(message: Mapping[str, Any]) -> bool:
    content = message["content"]
    return bool(content.strip() if isinstance(content, str) else content) or bool(message.get("tool_calls"))


def _names(files: Sequence[Path]) -> list[str]:
    """File names for uids; whole paths where two files share a name, numbered where a file is listed again."""
    count = Counter(file.name for file in set(files))
    return distinct(file.name if count[file.name] == 1 else str(file) for file in files)


def _check_columns(records: Sequence[Record], file: Path, prompt_key: str, reward_fn_key: str) -> None:
    if not records:
        raise UserError(f"{file} has no rows: write one a line, such as {EXAMPLE}")
    for key, setting in ((prompt_key, "data.prompt_key"), (reward_fn_key, "data.reward_fn_key")):
        if key == DATA_SOURCE:
            continue
        for columns, place in _columns(records, file):
            if key not in columns:
                raise UserError(f"{setting}: {place} has no column {key!r}; it has {', '.join(columns)}")


def _column(records: Sequence[Record], key: str) -> Iterator[Any]:
    return records.values(key) if isinstance(records, Table) else (record.get(key) for record in records)


def _columns(records: Sequence[Record], file: Path) -> list[tuple[list[str], str]]:
    if isinstance(records, Table):
        return [(records.columns(), str(file))]
    return [(list(record), f"{file}:{number}") for number, record in enumerate(records, 1)]
