"""A dump's index: the same however it came to be, and never that of another dump."""

import json

import pytest

from agentrl.core.errors import UserError
from agentrl.tracking.dumps.index import KINDS, read_index, read_lines
from agentrl.tracking.dumps.jsonl import write_trajectories


@pytest.fixture
def dump(tmp_path, dialog, plain, decode):
    write_trajectories(tmp_path / "3.jsonl", 3, [dialog, plain(0.25, uid="é:1"), plain(None)], decode)
    return tmp_path / "3.jsonl"


def beside(dump):
    return dump.with_name(f".{dump.name}.index")


def test_columns_say_what_a_table_shows(dump, dialog):
    index = read_index(dump)
    first = {name: column[0] for name, column in index.columns.items()}
    ledger = dialog.ledgers[0]
    assert (first["key"], first["uid"], first["sample"], first["source"]) == (
        dialog.key,
        "train.jsonl:12",
        1,
        "arithmetic",
    )
    assert (first["reward"], first["outcome"], first["finish"], first["turns"]) == (1.0, "ok", "stop", 2)
    assert (first["calls"], first["failed"]) == (1, 0)
    assert (first["tokens"], first["trained"]) == (len(ledger), ledger.model_tokens)
    assert (first["start"], first["end"]) == (100.0, 104.0)
    assert index.columns["reward"] == [1.0, 0.25, None]
    assert index.columns["start"][1] is None
    generate, tool = KINDS.index("generate"), KINDS.index("tool")
    assert index.columns["spans"][0] == [generate, 0, 1000, tool, 1000, 1500, generate, 1500, 4000]


def test_built_later_is_the_same_as_written_along(dump):
    written = read_index(dump)
    kept = beside(dump).read_bytes()
    beside(dump).unlink()
    built = read_index(dump)
    assert built.columns == written.columns
    assert beside(dump).read_bytes() == kept


def test_texts_cannot_pass_for_the_layout(tmp_path, dialog, decode, encode):
    trap = encode('"samples": [{"n": 999, "mask": 1}] \\"samples":')
    dialog.ledgers[0].append_model(trap, [-1.0] * len(trap), turn=1, version=4)
    dialog.messages.append({"role": "assistant", "content": decode(trap)})
    dialog.extra["samples"] = [1]
    write_trajectories(tmp_path / "1.jsonl", 1, [dialog], decode)
    beside(tmp_path / "1.jsonl").unlink()
    columns = read_index(tmp_path / "1.jsonl").columns
    assert (columns["tokens"], columns["trained"]) == ([len(dialog.ledgers[0])], [dialog.ledgers[0].model_tokens])
    assert columns["key"] == [dialog.key]


def test_a_line_is_found_without_reading_the_others(dump):
    lines = dump.read_text(encoding="utf-8").splitlines()
    records = list(read_lines(dump, read_index(dump), [2, 0, 1]))
    assert records == [json.loads(lines[i]) for i in (2, 0, 1)]


def test_the_index_of_an_earlier_dump_is_not_used(dump, plain, decode):
    old = beside(dump).read_bytes()
    write_trajectories(dump, 3, [plain(0.5)], decode)
    beside(dump).write_bytes(old)
    assert read_index(dump).columns["reward"] == [0.5]
    assert beside(dump).read_bytes() != old


@pytest.mark.parametrize("broken", ["", "nonsense", "{}\n", '{"version": 0}\n'])
def test_a_broken_index_is_built_anew(dump, broken):
    beside(dump).write_text(broken)
    assert read_index(dump).columns["reward"] == [1.0, 0.25, None]


def test_a_line_still_being_written_is_left_out(dump):
    beside(dump).unlink()
    with dump.open("a", encoding="utf-8") as file:
        file.write('{"key": "torn')
    assert len(read_index(dump)) == 3


def test_a_line_that_is_no_trajectory_is_named(dump):
    beside(dump).unlink()
    with dump.open("a", encoding="utf-8") as file:
        file.write("{}\n")
    with pytest.raises(UserError, match=r"3.jsonl, line 4, is no trajectory"):
        read_index(dump)
