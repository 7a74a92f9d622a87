"""Places that cannot be written, and disks that fill up: one line, and nothing good is lost.

A full disk is a limit on the size of files, which the kernel enforces at whatever place writes.
"""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentrl.cli.main import main
from agentrl.core.errors import InfraError, UserError
from agentrl.core.outputs import append_line, check_file, check_folder, model_folder, writing


@contextmanager
def full_disk(room: int = 4096) -> Iterator[None]:
    """Files take `room` bytes and no more. (Python ignores the signal that comes with it.)"""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_folder_that_can_be_made_leaves_nothing(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b", "trainer.default_local_dir")
    check_folder(tmp_path, "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "why"), [("file", "it is a file"), ("file/below", "Not a directory")])
def test_a_folder_that_cannot(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(
        UserError, match=f"trainer.output_dir: .*{name} cannot be written: {why}; name a writable folder"
    ):
        check_folder(tmp_path / name, "trainer.output_dir")
    assert (tmp_path / "file").read_text() == "kept"


def test_a_full_disk_is_found_beforehand(tmp_path: Path) -> None:
    with full_disk(0), pytest.raises(UserError, match="cannot be written: File too large"):
        check_folder(tmp_path / "new", "x")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_where_a_file_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--json: .* is a folder; name a file in it"):
        check_file(tmp_path, "--json")


def test_a_model_takes_its_place_whole(tmp_path: Path) -> None:
    (tmp_path / "model-00002-of-00002.safetensors").write_text("of an older, larger model")
    (tmp_path / "notes.txt").write_text("mine")
    with model_folder(tmp_path, "the model") as draft:
        (draft / "model.safetensors").write_text("new")
        assert not (tmp_path / "model.safetensors").exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.safetensors", "notes.txt"]


def test_an_adapter_leaves_its_base_model_alone(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("the base")
    with model_folder(tmp_path, "the model") as draft:
        (draft / "adapter_model.safetensors").write_text("new")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["adapter_model.safetensors", "model.safetensors"]


@pytest.mark.prevents("a full disk leaves half a model in place of a whole one")
@pytest.mark.parametrize("library", ["safetensors", "torch", "python"])
def test_a_full_disk_spoils_no_model(tmp_path: Path, library: str) -> None:
    import torch
    from safetensors.torch import save_file

    def write(file: Path) -> None:
        weights = {"weight": torch.zeros(10_000)}
        if library == "safetensors":
            save_file(weights, file)
        elif library == "torch":
            torch.save(weights, file)
        else:
            file.write_bytes(bytes(40_000))

    (tmp_path / "model.safetensors").write_text("old")
    refused = pytest.raises(InfraError, match="the model cannot be written: .*free the disk")
    with full_disk(), refused as caught, model_folder(tmp_path, "the model") as draft:
        write(draft / "model.safetensors")
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").read_text() == "old"


def test_other_errors_stay_as_they_are() -> None:
    for error in (ValueError("no"), FileNotFoundError(errno.ENOENT, "gone")):
        with pytest.raises(type(error)), writing("x"):
            raise error


def test_a_line_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("ab", buffering=0) as file:
        append_line(file, b"first\n")
        with full_disk(10), pytest.raises(OSError, match="No space left|File too large"):
            append_line(file, b"second\n")
        append_line(file, b"third\n")
    assert path.read_text() == "first\nthird\n"


def test_checkpoints_say_which_step_and_keep_those_before(tmp_path: Path) -> None:
    import torch

    from agentrl.config.schema import Trainer
    from agentrl.training.checkpoint.saving import Saver
    from agentrl.training.parallel.ranks import ALONE

    saver = Saver(Trainer(default_local_dir=str(tmp_path)), ALONE, background=False)
    saver.save(tmp_path, 1, {"x": torch.zeros(10)}, lambda folder: folder.mkdir())
    with full_disk(), pytest.raises(InfraError, match="the checkpoint of step 2 in .* older checkpoints are complete"):
        saver.save(tmp_path, 2, {"x": torch.zeros(10_000)}, lambda folder: folder.mkdir())
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["global_step_1"]


def test_answers_are_whole_or_absent(tmp_path: Path) -> None:
    from agentrl.evaluation.generating import write

    records = [{"prompt": os.urandom(9000).hex(), "reward_model": {}, "extra_info": {}, "messages": []}]
    for name in ("a.jsonl", "a.parquet"):
        (tmp_path / name).write_text("old")
        with full_disk(), pytest.raises(InfraError, match=f"{name} cannot be written"):
            write(tmp_path / name, records)
        assert (tmp_path / name).read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2


def test_rows_of_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with full_disk():
        assert main(["data", "arithmetic", "--out", str(tmp_path / "d"), "--train", "400"]) == 1
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert "train.parquet cannot be written: " in line
    assert list((tmp_path / "d").iterdir()) == []


def test_what_no_place_expected_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from agentrl.cli import main as cli

    def fail(args: list[str]) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/x/metrics.jsonl")

    monkeypatch.setattr(cli, "dispatch", fail)
    assert main(["train"]) == 1
    assert "error: runs/x/metrics.jsonl cannot be written or read: No space left" in capsys.readouterr().err
