"""Creates rows from records in verl's format and its variants.

Invariant: a Row holds plain Python only, and its uid depends on nothing but the file's name and the record's number in
it (and how often the file was listed before), so that it is the same after a restart, a shuffle or a filter.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.config.schema import Data
from agentrl.core.errors import UserError
from agentrl.data.files import Record, Table, paths, read_records
from agentrl.data.lazy import LazyRows, distinct, joined
from agentrl.data.media import with_media
from agentrl.data.plain import mapping, plain
from agentrl.trajectory.row import Row

DATA_SOURCE = "data_source"
"""The default `reward_fn_key`: the one column that may be missing."""

ROW_COLUMNS = {"data_source", "prompt", "ability", "reward_model", "extra_info", "agent_name", "tools_kwargs"}
ROW_COLUMNS |= {"interaction_kwargs", "multi_modal_data", "multi_modal_inputs"}
"""Columns that are a field of a Row, or too big to be kept."""

PROMPT_COLUMNS = ("question", "problem", "messages")
"""Columns that stand in for the prompt's where there is none."""
ANSWER_COLUMN = "answer"
"""The column that stands in for `ground_truth`."""

LINE_EXAMPLE = '{"prompt": "What is 2 + 3?", "ground_truth": "5"}'
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant"}
"""Roles of other formats -> roles here."""

DEFAULTS = Data()
"""A section that names the usual columns."""


class RecordRows(LazyRows):
    """Rows out of records, each made when asked for."""

    def __init__(self, records: Sequence[Any], name: str, data: Data) -> None:
        """`name`: the records' in uids and messages."""
        self.records, self.name, self.data = records, name, data

    def __len__(self) -> int:
        return len(self.records)

    def row(self, index: int) -> Row:
        return make_row(self.records[index], f"{self.name}:{index + 1}", self.data)


class FileRows(RecordRows):
    """Rows of one file."""

    def __init__(self, file: Path, name: str, data: Data) -> None:
        """Raises UserError."""
        super().__init__(read_records(file), name, data)
        _check_columns(self.records, file, data)

    def prompts(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """(uid, messages) of every row, faster than whole rows. Raises UserError for the first row without a prompt."""
        for number, prompt in enumerate(_prompts(self.records, self.data.prompt_key), 1):
            uid = f"{self.name}:{number}"
            yield uid, _messages(prompt, f"{uid}: {self.data.prompt_key}")

    def agent_names(self) -> set[str]:
        """Names of agent loops in the rows."""
        records = self.records
        names = records.values("agent_name") if isinstance(records, Table) else (r.get("agent_name") for r in records)
        return {str(name) for name in names if name}


def file_rows(files: Any, data: Data, what: str) -> list[FileRows]:
    """The rows of each of `files`. Raises UserError, naming the config key `what`."""
    found = paths(files, what)
    return [FileRows(file, name, data) for file, name in zip(found, _names(found), strict=True)]


def read_rows(
    files: str | Path | Sequence[str | Path], data: Data = DEFAULTS, *, what: str = "data.train_files"
) -> Sequence[Row]:
    """The rows of one or several parquet, json, jsonl or CSV files. Raises UserError, naming the config key `what`."""
    return joined(file_rows(files, data, what))


def make_row(record: Mapping[str, Any], uid: str, data: Data = DEFAULTS) -> Row:
    """One record as a Row. Raises UserError naming `uid` and the field that is wrong.

    `question`, `problem` or `messages` serve as the prompt, and `answer` as the ground truth, where there is none.
    Further columns are in `extra_info`, where the reward function finds them.
    """
    record = _completed(record, data.prompt_key)
    if data.prompt_key not in record:
        raise UserError(f"{uid} has no {data.prompt_key!r}: it has {', '.join(record) or 'nothing'}")
    fields = {key: _field(record, key, uid) for key in ("reward_model", "extra_info")}
    extra_info = fields["extra_info"]
    for key in ("tools_kwargs", "interaction_kwargs"):
        # verl's own dataset class lifts them to the top; people write them as JSON text to escape struct columns
        if key in extra_info or record.get(key) is not None:
            extra_info[key] = _field(extra_info if key in extra_info else record, key, uid)
    known = {*ROW_COLUMNS, data.prompt_key, data.reward_fn_key, *data.media_keys.values()}
    if "ground_truth" in record:
        fields["reward_model"].setdefault("ground_truth", plain(record["ground_truth"]))
    messages = _messages(record.get(data.prompt_key), f"{uid}: {data.prompt_key}")
    others = {key: plain(value) for key, value in record.items() if key not in known and value is not None}
    further = {key: value for key, value in others.items() if key != "ground_truth"}
    return Row(
        uid=uid,
        prompt=with_media(messages, record, data.media_keys, uid),
        data_source=str(plain(record.get(data.reward_fn_key)) or "unknown"),
        ability=plain(record.get("ability")),
        reward_model=fields["reward_model"],
        extra_info={key: value for key, value in further.items() if not hasattr(record[key], "tolist")} | extra_info,
        agent_name=plain(record.get("agent_name")),
        others=others,
    )


def prompt_column(names: Container[str], key: str) -> str:
    """The column that has the prompt: `key`, or where it is missing one that stands in for it."""
    return next((name for name in (key, *PROMPT_COLUMNS) if name in names), key)


def _completed(record: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A record with its prompt under `key`, and `answer` as its ground truth."""
    made = dict(record)
    if (found := prompt_column(made, key)) in made:
        made[key] = made.pop(found)
    if made.get(ANSWER_COLUMN) is not None and made.get("ground_truth") is None and made.get("reward_model") is None:
        made["ground_truth"] = made.pop(ANSWER_COLUMN)
    return made


def _field(record: Mapping[str, Any], key: str, uid: str) -> dict[str, Any]:
    try:
        return mapping(record.get(key))
    except ValueError as error:
        raise UserError(f"{uid}: {key} is no object: {error}") from None


def _messages(value: Any, where: str) -> list[dict[str, Any]]:
    if isinstance(value, str) and value.strip():
        return [{"role": "user", "content": plain(value)}]
    messages = plain(value)
    if messages in (None, "", []) or isinstance(messages, str):
        raise UserError(f"{where} is empty: write the question there, or remove the row")
    if not isinstance(messages, list):
        raise UserError(
            f"{where} holds neither messages nor a string, but {type(messages).__name__}: {str(messages)[:80]}"
        )
    for message in messages:
        _check_message(message, where)
        message.setdefault("content", "")  # dropped with the None values where there are only tool calls
    said = (text.strip() if isinstance(text := message["content"], str) else text for message in messages)
    if not any(said) and not any(message.get("tool_calls") for message in messages):
        raise UserError(f"{where} is empty: its messages have no content; write the question there, or remove the row")
    return messages


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, dict) or "role" not in message:
        shared = isinstance(message, dict) and {"from", "value"} <= message.keys()
        hint = (
            '; write {"role": "user", "content": ...}, for "from" and "value" are ShareGPT\'s names' if shared else ""
        )
        raise UserError(f"{where} holds something that is no message with a role: {str(message)[:80]}{hint}")
    if message["role"] in SHAREGPT_ROLES:
        right = SHAREGPT_ROLES[message["role"]]
        raise UserError(f"{where} has a message with the role {message['role']!r}: write {right!r}")
    content = message.get("content", "")
    if not isinstance(content, str | list):
        raise UserError(f"{where} has a message whose content is {str(content)[:80]!r}: write text")


def _names(files: Sequence[Path]) -> list[str]:
    """File names for uids; whole paths where two files share a name, numbered where a file is listed again."""
    count = Counter(file.name for file in set(files))
    return distinct(file.name if count[file.name] == 1 else str(file) for file in files)


def _check_columns(records: Sequence[Record], file: Path, data: Data) -> None:
    if not records:
        raise UserError(f"{file} has no rows: write one a line, such as {LINE_EXAMPLE}")
    for key, setting in ((data.prompt_key, "data.prompt_key"), (data.reward_fn_key, "data.reward_fn_key")):
        if key == DATA_SOURCE:
            continue
        for names, where in _names_of_columns(records, file):
            if key not in names and (key != data.prompt_key or prompt_column(names, key) not in names):
                raise UserError(f"{setting}: {where} has no column {key!r}; it has {', '.join(names)}")


def _prompts(records: Sequence[Record], key: str) -> Iterator[Any]:
    if isinstance(records, Table):
        return records.values(prompt_column(records.columns(), key))
    return (record.get(prompt_column(record, key)) for record in records)


def _names_of_columns(records: Sequence[Record], file: Path) -> list[tuple[list[str], str]]:
    if isinstance(records, Table):
        return [(records.columns(), str(file))]
    return [(list(record), f"{file}:{number}") for number, record in enumerate(records, 1)]
