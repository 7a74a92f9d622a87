"""Large dumps, which another process writes: the same bytes, whatever happens to that process."""

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from tokenizers import decoders

from agentrl.tracking import load_trajectories
from agentrl.tracking.dumps import writer as module
from agentrl.tracking.dumps.jsonl import write_trajectories
from agentrl.tracking.dumps.writer import DumpWriter, sendable

pytestmark = pytest.mark.integration


@pytest.fixture
def writer(decode, tokenizer, monkeypatch) -> Iterator[DumpWriter]:
    monkeypatch.setattr(module, "LARGE_TOKENS", 1)
    made = DumpWriter(decode, tokenizer)
    yield made
    made.close()


def write(writer: DumpWriter, path, step, trajectories) -> int:
    """Write a dump; returns how many processes write."""
    writer.write(path, step, trajectories)
    writer.wait()
    return len(writer._process._all)


def test_the_bytes_are_those_that_this_process_writes(writer, tmp_path, dialog, plain, decode):
    dialog.reward_extra = {"array": np.arange(2), "half": "\ud83d", "text": "é🙂"}
    trajectories = [dialog, plain(0.25, uid="é:1"), plain(None, ledgers=[])]
    dialog.advantages = [np.linspace(-1, 1, len(dialog.ledgers[0]), dtype=np.float32)]
    write_trajectories(tmp_path / "here/3.jsonl", 3, trajectories, decode)
    assert write(writer, tmp_path / "there/3.jsonl", 3, trajectories) == 1
    for name in ("3.jsonl", ".3.jsonl.index"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def test_what_cannot_be_sent_is_written_here(writer, tmp_path, dialog, caplog):
    dialog.reward_extra = {"mine": lambda: 0}
    write(writer, tmp_path / "1.jsonl", 1, [dialog])
    assert "lambda" in load_trajectories(tmp_path / "1.jsonl")[0]["reward_extra"]["mine"]
    assert "this process writes dumps from now on" in caplog.text
    assert not writer.failures


def test_a_dump_that_cannot_be_written_has_a_reason_and_the_next_is_written(writer, tmp_path, dialog):
    (tmp_path / "file").write_text("in the way")
    write(writer, tmp_path / "file/1.jsonl", 1, [dialog] * 3)
    assert write(writer, tmp_path / "2.jsonl", 2, [dialog]) == 1
    assert len(writer.failures) == 1
    assert "1.jsonl cannot be written" in writer.failures[0]


def test_a_killed_process_costs_no_dump(writer, tmp_path, dialog):
    write(writer, tmp_path / "1.jsonl", 1, [dialog])
    (process,) = writer._process._all
    os.kill(process.popen.pid, signal.SIGKILL)
    write(writer, tmp_path / "2.jsonl", 2, [dialog])
    assert len(load_trajectories(tmp_path / "2.jsonl")) == 1


def test_small_dumps_and_tokenizers_of_python_start_no_process(tmp_path, dialog, decode, tokenizer, monkeypatch):
    class Own:
        def decode(self, tokens):
            return "".join(tokens)

    assert write(DumpWriter(decode, tokenizer), tmp_path / "small.jsonl", 1, [dialog]) == 0
    monkeypatch.setattr(module, "LARGE_TOKENS", 1)
    assert write(DumpWriter(decode, object()), tmp_path / "own.jsonl", 1, [dialog]) == 0
    whole, backend = sendable(tokenizer), tokenizer.backend_tokenizer
    before, backend.decoder = backend.decoder, decoders.Decoder.custom(Own())
    try:
        assert sendable(tokenizer) is None
    finally:
        backend.decoder = before
    assert sendable(tokenizer) == whole
