"""Dumps that another process writes: the same bytes, whatever happens to that process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tokenizers import decoders

from agentrl.tracking import load_trajectories, write_trajectories
from agentrl.tracking.dump_writer import DumpWriter, sendable
from agentrl.tracking.dumps import Unwritable


@pytest.fixture(scope="module")
def writer(decode, tokenizer):
    with DumpWriter(decode, tokenizer, least=0) as made:
        yield made


class Strange:
    """A class that another process cannot load."""

    def __repr__(self) -> str:
        return "strange \ud83d"


def test_the_bytes_are_those_that_this_process_writes(writer, tmp_path, dialog, plain, decode):
    dialog.reward_extra = {"mine": Strange(), "array": np.arange(2), "half": "\ud83d", "text": "é🙂", "f": lambda: 0}
    dialog.extra = {"ring": [dialog.extra]}
    trajectories = [dialog, plain(0.25, uid="é:1"), plain(None, ledgers=[])]
    advantages = {dialog.key: [np.linspace(-1, 1, len(dialog.ledgers[0]), dtype=np.float32)]}
    write_trajectories(tmp_path / "here/3.jsonl", 3, trajectories, decode, advantages)
    writer.write(tmp_path / "there/3.jsonl", 3, trajectories, advantages)
    for name in ("3.jsonl", ".3.jsonl.index"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    assert writer._process is not None


def test_a_dump_that_cannot_be_written_has_a_reason_and_the_next_is_written(writer, tmp_path, dialog):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unwritable, match="exists"):
        writer.write(tmp_path / "file/1.jsonl", 1, [dialog] * 3, {})
    process = writer._process
    writer.write(tmp_path / "2.jsonl", 2, [dialog], {})
    assert writer._process is process
    assert [record["step"] for record in load_trajectories(tmp_path / "2.jsonl")] == [2]


def test_a_killed_process_is_replaced_and_nothing_is_lost(writer, tmp_path, dialog, caplog):
    writer.write(tmp_path / "1.jsonl", 1, [dialog], {})
    killed = writer._process.pid
    os.kill(killed, signal.SIGKILL)
    writer.write(tmp_path / "2.jsonl", 2, [dialog], {})
    assert writer._process.pid != killed
    assert len(load_trajectories(tmp_path / "2.jsonl")) == 1
    assert "died (exit code -9); a new one writes this dump again" in caplog.text


def test_where_no_process_lives_this_one_writes(tmp_path, dialog, decode, tokenizer, monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with DumpWriter(decode, tokenizer, least=0) as writer:
        for step in (1, 2):
            writer.write(tmp_path / f"{step}.jsonl", step, [dialog], {})
            assert len(load_trajectories(tmp_path / f"{step}.jsonl")) == 1
    assert caplog.text.count("this process writes dumps from now on") == 1


def test_small_dumps_and_tokenizers_of_python_start_no_process(tmp_path, dialog, decode, tokenizer):
    class Own:
        def decode(self, tokens):
            return "".join(tokens)

    with DumpWriter(decode, tokenizer) as small, DumpWriter(decode, object(), least=0) as own:
        for number, writer in enumerate((small, own)):
            writer.write(tmp_path / f"{number}.jsonl", 1, [dialog], {})
            assert writer._process is None
            assert (tmp_path / f"{number}.jsonl").exists()
    whole, backend = sendable(tokenizer), tokenizer.backend_tokenizer
    kept, backend.decoder = backend.decoder, decoders.Decoder.custom(Own())
    try:
        assert sendable(tokenizer) is None
    finally:
        backend.decoder = kept
    assert sendable(tokenizer) == whole


RUN = """
import sys, time
from agentrl.tracking.dump_process import DumpProcess

process = DumpProcess(sys.stdin.read())
process.write(__import__("pathlib").Path(sys.argv[1]), [])
print(process.pid, flush=True)
time.sleep(60)
"""


def test_a_killed_run_leaves_no_process(tmp_path: Path, tokenizer) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path / "1.jsonl")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        run.stdin.write(sendable(tokenizer))
        run.stdin.close()
        pid = int(run.stdout.readline())
        run.kill()
    deadline = time.monotonic() + 30
    while _lives(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _lives(pid)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
