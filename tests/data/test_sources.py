"""Row sources: rows that a function makes, named where a file would be."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentrl.config.choices import own_objects
from agentrl.config.keys import schema_keys
from agentrl.config.paths import check_paths
from agentrl.config.schema import Config, Data, Reward, Rollout
from agentrl.config.schema.data import ValSet
from agentrl.core.errors import UserError
from agentrl.core.points import ROW_SOURCES, row_source
from agentrl.core.row_sources import split_source
from agentrl.data import load_dataset
from agentrl.doctor.preflight import check_rows
from agentrl.rewards.checks import something_scores
from agentrl.rewards.ready_made import known_source
from agentrl.training.checkpoint.changes import changes
from agentrl.trajectory.row import Row
from tests.registries import scoped


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    """`count:N`: N rows of GSM8K."""
    with scoped(ROW_SOURCES):

        @row_source("count")
        def count(argument: str, *, data: Data) -> list[Row]:
            source = "openai/gsm8k" if data.prompt_key == "prompt" else data.prompt_key
            return [Row(f"count:{i}", [{"role": "user", "content": str(i)}], source) for i in range(int(argument))]

        yield


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "a.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    return str(tmp_path / "a.jsonl")


def test_a_source_and_a_file_together(file: str) -> None:
    rows = load_dataset(Data(), ["count:3", file, "count:1"], None)
    assert [row.uid for row in rows] == ["a.jsonl:1", "a.jsonl:2", "count:0", "count:1", "count:2", "count:0#2"]
    assert rows[-1].uid == "count:0#2"
    assert [row.uid for row in rows[1:3]] == ["a.jsonl:2", "count:0"]


def test_a_source_alone_reads_the_section() -> None:
    rows = load_dataset(Data(prompt_key="mine"), "count:2", None)
    assert [row.data_source for row in rows] == ["mine", "mine"]
    assert known_source(Data(train_files="count:2"))
    assert not known_source(Data(train_files="count:2", prompt_key="mine"))


def test_a_source_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from agentrl import Row\n"
        "def rows(argument):\n    return [Row(argument or 'none', [{'role': 'user', 'content': 'x'}])]\n"
    )
    path = f"{tmp_path}/mine.py:rows"
    assert [row.uid for row in load_dataset(Data(), [path, f"{path}:a:b"], None)] == ["none", "a:b"]


@pytest.mark.parametrize(
    ("value", "split"),
    [
        ("tasks:folder/of tasks", ("tasks", "folder/of tasks")),
        ("tasks:s3://bucket/x", ("tasks", "s3://bucket/x")),
        ("env:", ("env", "")),
        ("a/mine.py:rows", ("a/mine.py:rows", "")),
        ("s3://bucket/train.parquet", None),
        ("a:b.jsonl", None),  # a file of that name is there
        ("train.parquet", None),
        ("<python: rows>", None),
        (None, None),
    ],
)
def test_sources_and_files_are_told_apart(
    value: object, split: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:b.jsonl").write_text("")
    assert split_source(value) == split


def test_an_unknown_source_is_one_line_before_the_run() -> None:
    check_paths(Config(data=Data(train_files="cuont:3")))
    with pytest.raises(UserError, match=r"^data\.val_files=cuont: did you mean count\? choose "):
        own_objects(Config(data=Data(train_files=["count:3"], val_files="cuont:3")))
    with pytest.raises(UserError, match=r"^data\.val_sets\.hard\.files=cuont: did you mean count\? choose "):
        own_objects(Config(data=Data(val_sets={"hard": ValSet(files="cuont:3")})))
    with pytest.raises(UserError, match=r"^data\.train_files=cuont: did you mean count"):
        load_dataset(Data(), "cuont:3", None)


def test_a_source_that_fails_or_gives_nothing_is_one_line() -> None:
    with pytest.raises(UserError, match=r"^data\.train_files: count:0 has no rows$"):
        load_dataset(Data(), "count:0", None)
    with pytest.raises(UserError, match=r"^data\.train_files=count: ValueError: invalid literal"):
        load_dataset(Data(), "count:many", None)


def test_preflight_counts_all_rows(file: str) -> None:
    config = SimpleNamespace(
        data=Data(train_files=["count:3", file], train_batch_size=6),
        rollout=SimpleNamespace(agent=SimpleNamespace(agent_loop_config_path=None)),
        model=SimpleNamespace(external_lib=None),
        algorithm=SimpleNamespace(filter_groups=SimpleNamespace(enable=False)),
    )
    with pytest.raises(UserError, match="train_batch_size=6 is more than the 5 rows there are"):
        check_rows(config, trains=True)
    config.data.train_batch_size = 5
    assert check_rows(config, trains=True) == []


def test_the_same_folder_written_otherwise_is_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some").mkdir()

    def changed(old: str, new: str) -> bool:
        return bool(changes({"data": {"train_files": old}}, {"data": {"train_files": new}}, schema_keys(Config)))

    assert not changed("tasks:some", f"tasks:{tmp_path}/some")
    assert changed("tasks:some", "env:some")
    assert changed("tasks:some", "tasks:other")


def test_rows_that_score_themselves_need_no_reward_function() -> None:
    @row_source("judged", scored=True)
    def judged(argument: str) -> list[Row]:
        return [Row("judged:0", [{"role": "user", "content": "x"}])]

    something_scores(Reward(), Rollout(), Data(train_files=["judged:", "count:1"], prompt_key="mine"))
    with pytest.raises(UserError, match="nothing scores"):
        something_scores(Reward(), Rollout(), Data(train_files="count:1", prompt_key="mine"))


def test_rows_that_several_sources_have_in_common_have_uids_of_their_own(file: str) -> None:
    rows = load_dataset(Data(), [file, "count:2", file, "count:3", "count:2"], None)
    uids = [row.uid for row in rows]
    assert len(rows) == 11
    assert uids[:6] == ["a.jsonl:1", "a.jsonl:2", "a.jsonl#2:1", "a.jsonl#2:2", "count:0", "count:1"]
    assert uids[6:] == ["count:0#2", "count:1#2", "count:2", "count:0#3", "count:1#3"]
    assert [row.prompt[0]["content"] for row in rows][-2:] == ["0", "1"]
