"""Dumps as ATIF, and back."""

import json
from pathlib import Path

import pytest

from agentrl.cli.main import main
from agentrl.core.errors import UserError
from agentrl.evaluation.settings import replayed
from agentrl.tracking.dumps.atif import read_atif, to_atif
from agentrl.view.runs import find_trajectory

CALL = {"id": "a", "type": "function", "function": {"name": "calculator", "arguments": {"expression": "17 * 23"}}}
TALK = [
    {"role": "system", "content": "Calculate."},
    {"role": "user", "content": [{"type": "text", "text": "17 * 23?"}]},
    {"role": "assistant", "content": "", "reasoning_content": "A product.", "tool_calls": [CALL]},
    {"role": "tool", "name": "calculator", "tool_call_id": "a", "content": "391"},
    {"role": "assistant", "content": "It is 391."},
]
SEGMENTS = [{"source": "prompt", "n": 3}, {"source": "model", "n": 2}, {"source": "tool", "n": 1}]
SEGMENTS += [{"source": "model", "n": 1}]
COLUMNS = {"ids": [1, 2, 3, 4, 5, 6, 7], "logprobs": [0, 0, 0, -0.1, -0.2, 0, -0.3]}
RECORD = {
    "key": "3/f:2/0",
    "uid": "f:2",
    "reward": 1.0,
    "prompt": TALK[:2],
    "messages": TALK,
    "samples": [{"segments": SEGMENTS, "columns": COLUMNS}],
}


def test_a_turn_has_its_tokens_and_an_observation_its_call() -> None:
    system, user, first, last = to_atif(RECORD)["steps"]
    assert (system["source"], user["source"], user["message"]) == ("system", "user", "17 * 23?")
    assert first["observation"] == {"results": [{"content": "391", "source_call_id": "a"}]}
    assert first["metrics"]["completion_token_ids"] == [4, 5]
    assert last["metrics"] == {
        "prompt_tokens": 6, "completion_tokens": 1, "completion_token_ids": [7], "logprobs": [-0.3]
    }  # fmt: skip


def test_messages_come_back(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text(json.dumps(RECORD) + "\n")
    assert main(["view", str(tmp_path / "run.jsonl"), "--atif", str(tmp_path / "out")]) in (0, None)
    (file,) = (tmp_path / "out").iterdir()
    assert file.name == "3_f_2_0.json"
    record = find_trajectory(str(file))
    assert record["uid"] == "f:2"
    assert record["messages"] == [TALK[0], TALK[1] | {"content": "17 * 23?"}, *TALK[2:]]


def test_runs_with_the_same_keys_have_a_folder_each(tmp_path: Path) -> None:
    for run in "ab":
        (tmp_path / "runs" / run / "rollouts").mkdir(parents=True)
        (tmp_path / "runs" / run / "rollouts" / "3.jsonl").write_text(json.dumps(RECORD) + "\n")
    assert main(["view", str(tmp_path / "runs"), "--atif", str(tmp_path / "out")]) in (0, None)
    assert sorted(file.parent.name for file in (tmp_path / "out").rglob("*.json")) == ["a", "b"]


def test_a_file_in_place_of_the_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.jsonl").write_text(json.dumps(RECORD) + "\n")
    assert main(["view", str(tmp_path / "run.jsonl"), "--atif", str(tmp_path / "run.jsonl")]) == 2
    assert "run.jsonl cannot be written: it is a file; name a writable folder" in capsys.readouterr().err


def test_another_programs_file_is_its_own_row(tmp_path: Path) -> None:
    steps = [{"step_id": 1, "source": "user", "message": "17 * 23?"}]
    steps += [{"step_id": 2, "source": "agent", "message": "391", "observation": {"results": [{"content": "Sure?"}]}}]
    steps += [{"step_id": 3, "source": "agent", "message": "Yes."}]
    (tmp_path / "foreign.json").write_text(json.dumps({"schema_version": "ATIF-v1.6", "steps": steps}))
    (row,) = replayed([], read_atif(tmp_path / "foreign.json"), 2)
    assert [(message["role"], message["content"]) for message in row.prompt] == [
        ("user", "17 * 23?"), ("assistant", "391"), ("user", "Sure?"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"steps": 3}', '{"steps": [{"source": "user"}]}', '{"steps": ["x"]}']
)
def test_refuses_another_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match="no ATIF trajectory"):
        read_atif(tmp_path / "x.json")
