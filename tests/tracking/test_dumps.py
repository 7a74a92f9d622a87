"""Trajectories written and read back."""

import json
import math

import numpy as np
import pytest

from agentrl.core.errors import UserError
from agentrl.tracking import load_trajectories
from agentrl.tracking.dumps.jsonl import write_trajectories
from agentrl.tracking.dumps.records import token_texts
from agentrl.trajectory.trajectory import Outcome


@pytest.fixture
def record(tmp_path, dialog, decode):
    write_trajectories(tmp_path / "3.jsonl", 3, [dialog], decode)
    return load_trajectories(tmp_path / "3.jsonl")[0]


def test_what_happened_is_there(record, dialog):
    assert record["step"] == 3
    assert (record["key"], record["uid"], record["sample"]) == ("3/train.jsonl:12/1", "train.jsonl:12", 1)
    assert (record["data_source"], record["ground_truth"]) == ("arithmetic", "391")
    assert (record["reward"], record["reward_extra"]) == (1.0, {"acc": True, "note": "exact"})
    assert (record["outcome"], record["finish"], record["error"]) == ("ok", "stop", None)
    assert record["prompt"] == dialog.row.prompt
    assert record["messages"] == dialog.messages
    assert record["turn_rewards"] == [{"turn": 0, "value": 0.5, "source": "tool", "extra": {}}]
    call = record["tool_calls"][0]
    assert (call["name"], call["outcome"], call["seconds"], call["reward"]) == ("calculator", "ok", 0.012, 0.5)
    assert record["spans"][1] == {"kind": "tool", "start": 101.0, "end": 101.5}


def test_columns_are_the_ledger(record, dialog):
    ledger, sample = dialog.ledgers[0], record["samples"][0]
    assert sample["columns"] == {
        "ids": ledger.ids,
        "mask": ledger.mask,
        "logprobs": [round(value, 4) for value in ledger.logprobs],
        "chars": sample["columns"]["chars"],
    }
    assert sample["prompt_length"] == ledger.prompt_length


def test_each_token_can_be_read_without_the_tokenizer(record, dialog, decode):
    sample = record["samples"][0]
    texts = token_texts(sample)
    assert "".join(texts) == decode(dialog.ledgers[0].ids)
    assert len(texts) == len(dialog.ledgers[0])
    assert " 🙂" in texts
    assert {"What", " is", "<|im_end|>"} <= set(texts)


def test_advantages_are_written_in_runs(tmp_path, dialog, decode):
    n = len(dialog.ledgers[0])
    values = [0.0] * (n - 3) + [-1.234567] * 2 + [0.5]
    dialog.advantages = [values]
    write_trajectories(tmp_path / "3.jsonl", 3, [dialog], decode)
    columns = load_trajectories(tmp_path / "3.jsonl")[0]["samples"][0]["columns"]
    assert columns["advantages"] == [[n - 3, 0.0], [2, -1.2346], [1, 0.5]]


def test_segments_tell_the_stream_in_text(record, dialog, decode):
    segments = record["samples"][0]["segments"]
    assert [(s["source"], s["turn"], s["mask"], s["version"]) for s in segments] == [
        ("prompt", 0, 0, None),
        ("model", 0, 1, 3),
        ("template", 0, 0, None),
        ("tool", 0, 0, None),
        ("template", 0, 0, None),
        ("model", 1, 1, 4),
    ]
    assert sum(s["n"] for s in segments) == len(dialog.ledgers[0])
    assert "".join(s["text"] for s in segments) == decode(dialog.ledgers[0].ids)
    assert segments[3]["text"] == "<|im_start|>tool\n391<|im_end|>\n"
    assert (segments[1]["logprob"], segments[3]["logprob"]) == (-0.01, None)


def test_the_file_is_for_people_too(tmp_path, dialog, decode):
    write_trajectories(tmp_path / "3.jsonl", 3, [dialog, dialog], decode)
    lines = (tmp_path / "3.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    assert "It is 391 🙂 – trés simple." in lines[0]


def test_users_may_put_anything_into_a_trajectory(tmp_path, dialog, decode):
    dialog.reward_extra = {"np": np.float32(0.5), "array": np.arange(2), "bytes": b"abc", "set": {1}, "class": object}
    dialog.row.prompt[0]["images"] = (b"png",)
    write_trajectories(tmp_path / "1.jsonl", 1, [dialog], decode)
    extra = load_trajectories(tmp_path / "1.jsonl")[0]["reward_extra"]
    assert extra == {"np": 0.5, "array": [0, 1], "bytes": "<3 bytes>", "set": [1], "class": "<class 'object'>"}


def test_a_decoder_may_give_half_a_character(tmp_path, plain):
    write_trajectories(tmp_path / "1.jsonl", 1, [plain(0.5)], lambda ids: "\ud83d" * len(ids))
    (sample,) = load_trajectories(tmp_path / "1.jsonl")[0]["samples"]
    assert sample["segments"][0]["text"] == "\ufffd" * 3
    assert sample["columns"]["ids"] == [1, 2, 3, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6]


def test_a_trajectory_that_never_began(tmp_path, plain, decode):
    failed = plain(None, ledgers=[], outcome=Outcome.INFRA_ERROR, finish="error", error="engine died", turns=0)
    write_trajectories(tmp_path / "1.jsonl", 1, [failed], decode)
    record = load_trajectories(tmp_path / "1.jsonl")[0]
    assert (record["reward"], record["samples"], record["error"]) == (None, [], "engine died")


def test_writing_again_replaces_and_failing_changes_nothing(tmp_path, dialog, decode):
    path = tmp_path / "folder" / "1.jsonl"
    write_trajectories(path, 1, [dialog, dialog], decode)
    write_trajectories(path, 1, [dialog], decode)
    before = path.read_bytes()
    assert before.count(b"\n") == 1

    def broken(ids):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_trajectories(path, 1, [dialog], broken)
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == [".1.jsonl.index", "1.jsonl"]


def test_a_file_that_is_no_dump(tmp_path):
    with pytest.raises(UserError, match=r"none.jsonl: No such file"):
        load_trajectories(tmp_path / "none.jsonl")
    (tmp_path / "other.jsonl").write_text(json.dumps({"prompt": "?"}) + "\n")
    with pytest.raises(UserError, match=r"other.jsonl, line 1, is no trajectory"):
        load_trajectories(tmp_path / "other.jsonl")


def test_log_probs_are_rounded_for_reading_only(record, dialog):
    pairs = zip(record["samples"][0]["columns"]["logprobs"], dialog.ledgers[0].logprobs, strict=True)
    assert all(math.isclose(a, b, abs_tol=5e-5) for a, b in pairs)
