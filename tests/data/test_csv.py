"""Rows from CSV and TSV files, and files that are not UTF-8."""

import json
from pathlib import Path

import pytest

from agentrl.core.errors import UserError
from agentrl.data import read_rows


def rows_of(folder: Path, text: str | bytes, name: str = "rows.csv") -> list:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_rows(file))


def refusal(folder: Path, text: str | bytes, name: str = "rows.csv") -> str:
    with pytest.raises(UserError) as caught:
        rows_of(folder, text, name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_prompt_is_text_and_columns_have_their_names(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, "prompt,ground_truth,data_source,level\nWhat is 2 + 3?,5,sums,easy\n")
    assert row.prompt == [{"role": "user", "content": "What is 2 + 3?"}]
    assert (row.ground_truth, row.data_source, row.others["level"]) == ("5", "sums", "easy")
    assert row.uid == "rows.csv:1"


def test_cells_with_commas_quotes_and_line_breaks(tmp_path: Path) -> None:
    (row, other) = rows_of(tmp_path, 'prompt\r\n"Say ""hi"",\r\nthen stop"\r\nmore\r\n')
    assert row.prompt[0]["content"] == 'Say "hi",\r\nthen stop'
    assert other.uid == "rows.csv:2"


def test_json_in_cells(tmp_path: Path) -> None:
    def cell(value: object) -> str:
        return '"' + json.dumps(value).replace('"', '""') + '"'

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}]
    extra = {"index": 7, "tools_kwargs": {"bank": {"create_kwargs": {"balance": 5}}}}
    line = ",".join(map(cell, (messages, {"ground_truth": "5"}, extra)))
    (row,) = rows_of(tmp_path, f"prompt,reward_model,extra_info\n{line}\n")
    assert row.prompt == messages
    assert (row.ground_truth, row.extra_info["index"]) == ("5", 7)
    assert row.tools_kwargs == extra["tools_kwargs"]


@pytest.mark.parametrize("text", ["[1, 2]", '{"a": 1}', "[{not json", '["a"]'])
def test_a_prompt_that_only_looks_like_json_stays_text(tmp_path: Path, text: str) -> None:
    quoted = text.replace('"', '""')
    (row,) = rows_of(tmp_path, f'prompt\n"{quoted}"\n')
    assert row.prompt == [{"role": "user", "content": text}]


def test_an_empty_cell_is_missing(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, "prompt,ground_truth,agent_name\nhello,,\n")
    assert (row.ground_truth, row.agent_name) == (None, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [("rows.csv", "prompt;ground_truth\na;b\n"), ("rows.tsv", "prompt\tground_truth\na\tb\n")],
)
def test_what_spreadsheets_write(tmp_path: Path, name: str, text: str) -> None:
    for content in (text.encode(), text.encode("utf-8-sig")):
        (row,) = rows_of(tmp_path, content, name)
        assert (row.prompt[0]["content"], row.ground_truth) == ("a", "b")


def test_a_byte_order_mark_before_json(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, '{"prompt": "é"}\n'.encode("utf-8-sig"), "rows.jsonl")
    assert row.prompt[0]["content"] == "é"


def test_a_very_long_cell(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, "prompt\n" + "a" * 300_000 + "\n")
    assert len(row.prompt[0]["content"]) == 300_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prompt,ground_truth\nadd 2, please,5\n", "rows.csv:2 has 3 cells, and the header 2 (prompt, ground_truth)"),
        ("prompt,ground_truth\nalone\n", "rows.csv:2 has 1 cell, and the header 2"),
        ('prompt\n"never closed\n', "is not CSV: unexpected end of data"),
        (
            "qestion\na\n",
            "data.prompt_key: ",
        ),
        ("prompt,prompt\na,b\n", "two columns are named 'prompt': rename one"),
        ("", "has no rows"),
        ("prompt\n", "has no rows"),
        ("prompt,ground_truth\n,5\n", "rows.csv:1: prompt is empty"),
        ("prompt\né\n".encode("latin1"), "rows.csv:2 is not UTF-8: save it as UTF-8, with `iconv -f latin1 -t utf-8 "),
        ("prompt\na\n".encode("utf-16"), "rows.csv is not UTF-8: save it as UTF-8, with `iconv -f utf-16"),
    ],
)
def test_mistakes(tmp_path: Path, text: str | bytes, words: str) -> None:
    assert words in refusal(tmp_path, text)
