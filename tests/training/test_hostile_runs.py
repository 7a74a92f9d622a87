"""A run's folder from another person changes nothing outside of it, and takes nothing from there."""

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import torch

from agentrl.core import remote_files
from agentrl.core.errors import UserError
from agentrl.core.outputs import write_atomic
from agentrl.tracking.loggers import FileLogger
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.checkpoint.changes import changes_since
from agentrl.training.checkpoint.lineage import FOLDER
from agentrl.training.checkpoint.merge import merge
from agentrl.training.checkpoint.run_start import run_folder
from agentrl.training.parallel.shards import TensorChunk
from tests.training.saved import save_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder in a home with a file of the host."""
    (tmp_path / "home/run" / FOLDER).mkdir(parents=True)
    (tmp_path / "home/key").write_text("the host's")
    return tmp_path / "home/run"


def state(home: Path) -> dict[str, str]:
    """All files outside of the run."""
    return {str(file): file.read_text() for file in home.iterdir() if file.is_file() and not file.is_symlink()}


def test_no_link_is_written_through(run: Path) -> None:
    key, links = run.parent / "key", (".lock", "metrics.jsonl", f".metrics.jsonl.{os.getpid()}.tmp")
    for name in links:
        (run / name).symlink_to(key)
    config = type("Config", (), {"trainer": type("Trainer", (), {"default_local_dir": str(run), "val_only": True})})
    with pytest.raises(UserError, match=r"\.lock' is outside of"), run_folder(config, "trainer.default_local_dir"):
        pass
    write_atomic(run / "metrics.jsonl", ["{}\n"])
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to(run.parent / "new")
    with pytest.raises(UserError, match="is outside of"):
        FileLogger(run / "metrics.jsonl")
    assert state(run.parent) == {str(key): "the host's"}


@pytest.fixture
def checkpoint(run: Path) -> Path:
    chunk = TensorChunk(torch.Size([4]), 0, torch.ones(4))
    return save_checkpoint(run / FOLDER, 1, {"policy": {"parameters": {"w": chunk}}, "critic": {"w": chunk}})


def test_a_manifest_names_files_of_its_checkpoint(checkpoint: Path) -> None:
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for name in ("../../../key", "/etc/passwd"):
        (checkpoint / "manifest.json").write_text(json.dumps(manifest | {"files": {name: [1, 2]}}))
        with pytest.raises(checkpoints.DamagedCheckpoint, match="manifest.json names files outside of it"):
            checkpoints.load(checkpoint)
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    (checkpoint / "manifest.new").symlink_to(checkpoint.parents[2] / "key")
    save_checkpoint(checkpoint.parent, 2, {"policy": {}})
    checkpoints.prune_part(checkpoint.parent, "critic", 1)
    assert state(checkpoint.parents[2]) == {str(checkpoint.parents[2] / "key"): "the host's"}


def test_links_in_place_of_checkpoints_are_removed_alone(checkpoint: Path) -> None:
    home = checkpoint.parents[2]
    (home / "mine").mkdir()
    (home / "mine/file").write_text("the host's")
    for name in (".new-global_step_3", ".old-global_step_1", "global_step_0"):
        (checkpoint.parent / name).symlink_to(home / "mine")
    checkpoints.tidy(checkpoint.parent)
    checkpoints.prune(checkpoint.parent, 1)
    assert [path.name for path in checkpoint.parent.iterdir()] == ["global_step_1"]
    assert (home / "mine/file").read_text() == "the host's"


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {os.environ['AGENTRL_TEST_BOMB']}",)


def test_a_state_runs_no_code(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_TEST_BOMB", str(tmp_path / "exploded"))
    torch.save({"policy": Bomb()}, checkpoint / "state.pt")
    stamp = checkpoints._stamp(checkpoint / "state.pt")
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"]["state.pt"] = stamp
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        checkpoints.load(checkpoint)
    assert not (tmp_path / "exploded").exists()


def test_an_export_takes_no_file_of_this_machine_along(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "huggingface").mkdir()
    (checkpoint / "huggingface/processor_config.json").symlink_to(checkpoint.parents[2] / "key")
    with pytest.raises(UserError, match=r"processor_config.json' is outside of"):
        merge(checkpoint, tmp_path / "out")


def test_settings_of_a_run_are_read_with_bounded_work(run: Path) -> None:
    aliases = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    (run / "config.yaml").write_text(f"a0: &a0 [x]\n{aliases}")
    with pytest.raises(UserError, match="has more than 1000000 values"):
        changes_since(run / "config.yaml", None)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[fsspec.AbstractFileSystem]:
    monkeypatch.setenv(remote_files.CACHE, str(tmp_path / "home/a/b/cache"))
    place = fsspec.filesystem("memory")
    yield place
    place.rm("/bucket", recursive=True)


def test_a_bucket_writes_nothing_outside_of_the_copy(bucket: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    bucket.pipe("/bucket/run/fine", b"1")
    bucket.pipe("/bucket/run/../../../../evil", b"2")
    with pytest.raises(UserError, match=r"evil' is outside of"):
        remote_files.fetch("memory://bucket/run", "model.path")
    assert not list(tmp_path.rglob("evil"))
