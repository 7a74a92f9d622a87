"""verl's row layout, in every form in which it is met."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.config.schema import Data
from agentrl.core.errors import UserError
from agentrl.data import read_rows
from agentrl.data.rows import file_rows


def record(number: int, **changes: Any) -> dict[str, Any]:
    """A row as verl's preprocessing scripts write it."""
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"question {number}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(number)},
        "extra_info": {"split": "train", "index": number},
        **changes,
    }


def write(folder: Path, name: str, records: list[dict[str, Any]]) -> Path:
    """A parquet, json or jsonl file, by its name's ending."""
    file = folder / name
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), file)
    elif file.suffix == ".json":
        file.write_text(json.dumps(records))
    else:
        file.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records))
    return file


@pytest.mark.parametrize("name", ["a.parquet", "a.json", "a.jsonl"])
def test_same_row_from_every_format(tmp_path: Path, name: str) -> None:
    (row,) = read_rows(write(tmp_path, name, [record(7)]))
    assert row.uid == f"{name}:1"
    assert row.prompt == [{"role": "user", "content": "question 7"}]
    assert (row.data_source, row.ability, row.ground_truth) == ("openai/gsm8k", "math", "7")
    assert row.extra_info == {"split": "train", "index": 7}
    assert row.agent_name is None


def test_several_files_in_order_with_stable_uids(tmp_path: Path) -> None:
    first = write(tmp_path, "first.parquet", [record(1), record(2)])
    second = write(tmp_path, "second.jsonl", [record(3)])
    rows = read_rows([first, str(second)])
    assert [row.uid for row in rows] == ["first.parquet:1", "first.parquet:2", "second.jsonl:1"]
    assert [row.ground_truth for row in rows[1:]] == ["2", "3"]
    assert rows[-1] == rows[2]


def test_files_of_one_name_keep_apart(tmp_path: Path) -> None:
    files = []
    for part in ("seed=1", "seed=2"):  # folder names that pyarrow would take for partition columns
        (tmp_path / part).mkdir()
        files.append(write(tmp_path / part, "train.parquet", [record(1)]))
    assert len({row.uid for row in read_rows(files)}) == 2


def test_keys_that_other_rows_brought_into_the_struct_are_dropped(tmp_path: Path) -> None:
    bank = {"bank": {"create_kwargs": {"balance": 10}}}
    search = {"search": {"create_kwargs": {"corpus": "c"}, "execute_kwargs": {"k": 3}}}
    records = [record(i, extra_info={"index": i, "tools_kwargs": kwargs}) for i, kwargs in enumerate([bank, search])]
    records.append(record(2))
    rows = read_rows(write(tmp_path, "mixed.parquet", records))
    assert [row.extra_info.get("tools_kwargs") for row in rows] == [bank, search, None]


def test_string_prompt_becomes_a_user_message(tmp_path: Path) -> None:
    (row,) = read_rows(write(tmp_path, "a.jsonl", [{"question": "why?"}]), Data(prompt_key="question"))
    assert row.prompt == [{"role": "user", "content": "why?"}]
    assert row.data_source == "unknown"


def test_json_text_in_place_of_objects(tmp_path: Path) -> None:
    kwargs = {"bank": {"create_kwargs": {"balance": 10}}}
    extra = json.dumps({"index": 3, "tools_kwargs": json.dumps(kwargs)})
    texts = record(0, extra_info=extra, reward_model=json.dumps({"ground_truth": [1, 2]}))
    (row,) = read_rows(write(tmp_path, "a.parquet", [texts]))
    assert row.extra_info == {"index": 3, "tools_kwargs": kwargs}
    assert row.ground_truth == [1, 2]


def test_line_separators_inside_strings(tmp_path: Path) -> None:
    text = "one\u2028two\x85three"
    (row,) = read_rows(write(tmp_path, "a.jsonl", [record(0, prompt=text)]))
    assert row.prompt[0]["content"] == text


def test_agent_name_and_tool_calls_in_the_prompt(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    prompt = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    (row,) = read_rows(write(tmp_path, "a.parquet", [record(0, prompt=prompt, agent_name="tool_agent")]))
    assert row.agent_name == "tool_agent"
    assert row.prompt[0] == {"role": "user", "content": "q"}
    assert row.prompt[1] == {"role": "assistant", "content": "", "tool_calls": [call]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"prompt": "x"}\n{"promt": "y"}\n',
            r"data.prompt_key: .*a.jsonl:2 has no column 'prompt'; it has promt",
        ),
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": \n', r"a.jsonl:2 is not JSON"),
        ("a.jsonl", "[1, 2]", r"a.jsonl:1 is not a JSON object"),
        ("a.jsonl", "", r"a.jsonl has no rows"),
        ("a.jsonl", '{"prompt": [{"content": "no role"}]}', r"a.jsonl:1: prompt holds something that is no message"),
        ("a.jsonl", '{"prompt": "x", "extra_info": "{broken"}', r"a.jsonl:1: extra_info is no object"),
        ("a.parquet", "not parquet", r"a.parquet is not a parquet file"),
        ("a.txt", "prompt\nx\n", r"name it .parquet, .jsonl, .json or .csv"),
    ],
)
def test_bad_files_are_named_in_one_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        list(read_rows(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_wrong_column_names_the_columns_there_are(tmp_path: Path) -> None:
    file = write(tmp_path, "a.parquet", [record(1)])
    with pytest.raises(UserError, match="no column 'question'; it has data_source, prompt, ability"):
        read_rows(file, Data(prompt_key="question"))
    with pytest.raises(UserError, match=r"data.reward_fn_key: .* no column 'source'"):
        read_rows(file, Data(reward_fn_key="source"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("nowhere.parquet", "data.val_files: nowhere.parquet does not exist"),
        (
            "hdfs://cluster/train.parquet",
            "data.val_files: hdfs://cluster/train.parquet cannot be reached",
        ),
        (None, "data.val_files names no file"),
        ([], "data.val_files names no file"),
        (".", "data.val_files: .* is a folder"),
    ],
)
def test_missing_files(files: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_rows(files, what="data.val_files")


def test_a_file_listed_again_gives_rows_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    once, other = (write(folder, "a.jsonl", [record(1), record(2)]) for folder in (tmp_path, tmp_path / "b"))
    assert [row.uid for row in read_rows([once, once])] == ["a.jsonl:1", "a.jsonl:2", "a.jsonl#2:1", "a.jsonl#2:2"]
    parts = file_rows([once, other, once], Data(), "data.train_files")
    uids = [row.uid for part in parts for row in part]
    assert uids == [uid for part in parts for uid, _ in part.prompts()]
    assert len(set(uids)) == 6
