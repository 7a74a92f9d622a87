"""Files elsewhere, on fsspec's file system in memory: fetched whole, sent so that what is there is complete."""

from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest

from agentrl import remote
from agentrl.config.schema import Trainer
from agentrl.data.files import paths, read_records
from agentrl.errors import UserError
from agentrl.runtime.checkpoints import FOLDER, Checkpoints
from agentrl.training import checkpoints
from agentrl.training.ranks import ALONE
from agentrl.training.saving import Saver


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv(remote.CACHE, str(tmp_path / "cache"))
    place = fsspec.filesystem("memory")
    yield place
    place.rm("/", recursive=True)


def test_a_file_and_a_folder_are_fetched_once(elsewhere, tmp_path):
    elsewhere.pipe({"/data/rows.jsonl": b'{"x": 1}\n', "/model/config.json": b"{}", "/model/a/b.txt": b"b"})
    (file,) = paths("memory://data/rows.jsonl", "data.train_files")
    assert list(read_records(file)) == [{"x": 1}]
    folder = remote.fetch("memory://model", "model.path")
    assert (folder / "a" / "b.txt").read_text() == "b"
    elsewhere.pipe("/model/config.json", b"other")
    assert (remote.fetch("memory://model/", "model.path").parent / "model" / "config.json").read_text() == "{}"
    assert not list((tmp_path / "cache").rglob(f"{remote.DRAFT}*"))


def test_a_copy_in_shared_memory_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    (tmp_path / "model" / "a").mkdir(parents=True)
    (tmp_path / "model" / "a" / "b.txt").write_text("b")
    copy = Path(remote.in_shared_memory(str(tmp_path / "model"), "model.use_shm"))
    assert copy.is_relative_to(tmp_path / "shm")
    assert (copy / "a" / "b.txt").read_text() == "b"
    (copy / "mark").touch()
    assert remote.in_shared_memory(str(tmp_path / "model"), "model.use_shm") == str(copy)
    assert (copy / "mark").exists()
    (tmp_path / "model" / "a" / "b.txt").write_text("changed")
    assert (Path(remote.in_shared_memory(str(tmp_path / "model"), "x")) / "a" / "b.txt").read_text() == "changed"
    (tmp_path / "rows.jsonl").write_text('{"prompt": "p"}\n')
    assert Path(remote.in_shared_memory(str(tmp_path / "rows.jsonl"), "data.use_shm")).name == "rows.jsonl"


def test_what_has_no_place_in_shared_memory_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"model\.use_shm: someone/model is no folder on this machine"):
        remote.in_shared_memory("someone/model", "model.use_shm")
    (tmp_path / "rows.jsonl").write_text("x" * 2048)
    monkeypatch.setattr(remote.shutil, "disk_usage", lambda _: SimpleNamespace(free=1024))
    with pytest.raises(UserError, match=r"takes 0\.0 GiB, and /dev/shm has 0\.0"):
        remote.in_shared_memory(str(tmp_path / "rows.jsonl"), "data.use_shm")
    monkeypatch.undo()
    monkeypatch.setattr(remote, "SHARED_MEMORY", tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"data\.use_shm: this machine has no .*nowhere; set it to false"):
        remote.in_shared_memory(str(tmp_path / "rows.jsonl"), "data.use_shm")


@pytest.mark.parametrize(
    ("url", "why"), [("memory://nowhere", "there is no memory://nowhere"), ("nonsense://x/y", "cannot be reached")]
)
def test_what_cannot_be_had_is_named(url, why):
    with pytest.raises(UserError, match=f"model.path: .*{why}") as caught:
        remote.fetch(url, "model.path")
    assert "\n" not in str(caught.value)


class Learner:
    """Saves as one does that has nothing but a number."""

    def __init__(self, trainer):
        self.saver = Saver(trainer, ALONE, aside=True)
        self.number = 0

    def save(self, folder, step, state, last):
        self.saver.save(folder, step, state | {"policy": {"number": self.number}}, lambda out: None)
        if last:
            self.saver.wait()

    def load(self, path):
        step, state = checkpoints.load(path)
        self.number = state.pop("policy")["number"]
        return step, state


def test_checkpoints_go_elsewhere_and_another_machine_resumes_from_there(elsewhere, tmp_path):
    trainer = Trainer(
        default_local_dir=str(tmp_path / "one"), default_hdfs_dir="memory://ckpt/run", max_actor_ckpt_to_keep=1
    )
    learner = Learner(trainer)
    run = Checkpoints(trainer, learner, {})
    for step in (9, 10):
        learner.number = step * 11
        run.save(step, last=step == 10)
    assert [p.name for p in (tmp_path / "one" / FOLDER).iterdir()] == ["global_step_10"]
    elsewhere.pipe("/ckpt/run/global_step_11/state.pt", b"half of one")
    trainer = Trainer(default_local_dir=str(tmp_path / "two"), default_hdfs_dir="memory://ckpt/run")
    other = Learner(trainer)
    assert Checkpoints(trainer, other, {}).resume() == 10
    assert other.number == 110
    named = Trainer(resume_mode="resume_path", resume_from_path="memory://ckpt/run/global_step_9")
    assert Checkpoints(named, other, {}).resume() == 9
    assert other.number == 99
