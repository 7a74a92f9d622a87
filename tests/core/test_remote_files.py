"""Files elsewhere, on fsspec's file system in memory: fetched whole, sent so that what is there is complete."""

from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest

from agentrl.config.schema import Trainer
from agentrl.core import remote_files as remote
from agentrl.core.errors import UserError
from agentrl.data.files import paths, read_records
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.checkpoint.resuming import newest
from agentrl.training.checkpoint.run_state import FOLDER, Checkpoints
from agentrl.training.checkpoint.saving import Saver
from agentrl.training.parallel.ranks import ALONE


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
        self.saver = Saver(trainer, ALONE, background=True)
        self.number = 0

    def save(self, folder, step, state, last, model_only):
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


def run_of(folder, *steps, number, **trainer):
    """A run in `folder` that saves these steps; the number that it went on with, and its step."""
    settings = Trainer(default_local_dir=str(folder), default_hdfs_dir="memory://ckpt/run", save_freq=1, **trainer)
    learner = Learner(settings)
    run = Checkpoints(settings, learner, {})
    begun = run.resume(), learner.number
    learner.number = number
    for step in steps:
        run.save(step, last=True)
    return begun


def test_copies_elsewhere_are_of_one_lineage_too(elsewhere, tmp_path, caplog):
    run_of(tmp_path / "one", 2, 4, 6, number=1)
    path = str(tmp_path / "one" / FOLDER / "global_step_2")
    assert run_of(tmp_path / "one", 3, number=2, resume_mode="resume_path", resume_from_path=path) == (2, 1)
    assert "the checkpoints of steps 4, 6 are now in memory://ckpt/run/superseded_1\n" in caplog.text
    # another machine goes on from the newest of the new branch, and from the old one where it is named
    assert run_of(tmp_path / "two", number=3) == (3, 2)
    old = "memory://ckpt/run/superseded_1/global_step_6"
    assert run_of(tmp_path / "three", number=4, resume_mode="resume_path", resume_from_path=old) == (6, 1)
    assert sorted(p.rpartition("/")[2] for p in elsewhere.ls("/ckpt/run/superseded_2", detail=False)) == [
        "global_step_2",
        "global_step_3",
    ]


def test_an_ancestor_elsewhere_is_one_here(elsewhere, tmp_path):
    run_of(tmp_path / "one", 2, 4, number=1)
    path = "memory://ckpt/run/global_step_2"
    assert run_of(tmp_path / "one", 3, number=2, resume_mode="resume_path", resume_from_path=path) == (2, 1)
    folder = tmp_path / "one" / FOLDER
    assert sorted(p.name for p in folder.iterdir()) == ["global_step_2", "global_step_3", "superseded_1"]
    assert sorted(elsewhere.ls("/ckpt/run", detail=False)) == [
        f"/ckpt/run/{name}" for name in ("global_step_2", "global_step_3", "superseded_1")
    ]


def test_a_damaged_checkpoint_is_fetched_again_before_an_older_one_is_taken(tmp_path):
    run_of(tmp_path, 2, 4, number=1)
    (tmp_path / FOLDER / "global_step_4" / "state.pt").write_bytes(b"half")
    assert run_of(tmp_path, number=2) == (4, 1)
    assert (tmp_path / FOLDER / "damaged_1" / "global_step_4" / "state.pt").read_bytes() == b"half"


def test_a_fetched_checkpoint_is_the_one_that_is_there_now(tmp_path):
    """The copy of one that was replaced since, by another branch, is not taken for it."""
    url = "memory://ckpt/run/global_step_2"
    numbers = []
    for number in (1, 2):
        run_of(tmp_path / "one", 2, number=number, resume_mode="disable")
        numbers.append(checkpoints.load(newest(url))[1]["policy"]["number"])
    assert numbers == [1, 2]
    assert newest("memory://ckpt/run").name == "global_step_2"
    run_of(tmp_path / "one", 4, number=3)
    assert checkpoints.load(newest("memory://ckpt/run/"))[0] == 4
    with pytest.raises(UserError, match="memory://ckpt is no checkpoint, and has none"):
        newest("memory://ckpt")


def test_what_is_sent_again_replaces_all_that_was_there(elsewhere, tmp_path):
    elsewhere.pipe("/ckpt/run/global_step_2/policy-00007.safetensors", b"of a run with eight ranks, killed on the way")
    run_of(tmp_path, 2, number=1)
    assert not elsewhere.exists("/ckpt/run/global_step_2/policy-00007.safetensors")
