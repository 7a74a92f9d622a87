"""The checkpoint that a run resumes from."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema import Trainer
from agentrl.core.errors import UserError
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.checkpoint.lineage import latest
from agentrl.training.checkpoint.run_state import Checkpoints
from tests.training.saved import save_checkpoint


class Learner:
    """Saves and loads without a model."""

    def save(self, folder: Path, step: int, state: dict[str, Any], last: bool, model_only: bool) -> None:
        save_checkpoint(folder, step, state | {"model_only": model_only})

    def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        return checkpoints.load(path)


@pytest.mark.parametrize(
    ("save_freq", "finished", "model_only"), [(-1, True, True), (-1, False, False), (5, True, False)]
)
def test_a_run_without_checkpoints_keeps_its_model(
    tmp_path: Path, save_freq: int, finished: bool, model_only: bool
) -> None:
    """One that is stopped keeps all, so that nothing is lost."""
    run = Checkpoints(Trainer(default_local_dir=str(tmp_path), save_freq=save_freq), Learner(), {})
    run.save(3, last=True, finished=finished)
    assert checkpoints.load(tmp_path / "checkpoints/global_step_3")[1]["model_only"] is model_only


def test_a_run_that_only_validates_moves_nothing(tmp_path: Path) -> None:
    """It looks at an old checkpoint, and begins no branch there."""
    trainer = Trainer(default_local_dir=str(tmp_path), rollout_data_dir=str(tmp_path / "rollouts"))
    run = Checkpoints(trainer, Learner(), {})
    for step in (1, 2):
        run.save(step)
    dump = tmp_path / "rollouts" / "2.jsonl"
    dump.parent.mkdir()
    dump.touch()
    path = tmp_path / "checkpoints" / "global_step_1"
    named = replace(trainer, resume_mode="resume_path", resume_from_path=str(path))
    assert Checkpoints(replace(named, val_only=True), Learner(), {}).resume() == 1
    assert dump.exists()
    assert latest(path.parent) == path.with_name("global_step_2")
    assert Checkpoints(named, Learner(), {}).resume() == 1
    assert latest(path.parent) == path
    assert (path.parent / "superseded_1" / "rollouts" / "2.jsonl").exists()


def test_a_run_without_a_checkpoint_is_set_aside_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was killed before it saved: the same command starts over, and its dumps must not lie beside the new ones."""
    trainer = Trainer(default_local_dir=str(tmp_path), rollout_data_dir=str(tmp_path / "rollouts"))
    files = ("config.yaml", "metrics.jsonl", "rollouts/1.jsonl", "rollouts/2.jsonl")
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert Checkpoints(trainer, Learner(), {}).resume() == 0
    aside = tmp_path / "checkpoints" / "superseded_1"
    assert all((aside / name).exists() and not (tmp_path / name).exists() for name in files)
    assert f"all its files are now in {aside}" in caplog.text
    assert Checkpoints(trainer, Learner(), {}).resume() == 0
    assert [path.name for path in aside.parent.iterdir()] == ["superseded_1"]


def test_a_run_that_starts_over_takes_no_sessions_of_the_run_before(tmp_path: Path) -> None:
    """One that was killed before it saved has to train on them again."""
    taken = tmp_path / "sessions" / "taken" / "0"
    taken.mkdir(parents=True)
    trainer = Trainer(default_local_dir=str(tmp_path))
    assert Checkpoints(trainer, Learner(), {}).resume() == 0
    assert taken.exists()
    assert Checkpoints(replace(trainer, resume_mode="disable"), Learner(), {}).resume() == 0
    assert (tmp_path / "checkpoints" / "superseded_1" / "taken" / "0").exists()
    assert not taken.exists()


def test_a_branch_from_elsewhere_leaves_nothing_of_the_folders_old_run(tmp_path: Path) -> None:
    other = Trainer(default_local_dir=str(tmp_path / "other"))
    Checkpoints(other, Learner(), {}).save(5)
    mine = Trainer(default_local_dir=str(tmp_path / "mine"), rollout_data_dir=str(tmp_path / "mine/rollouts"))
    Checkpoints(mine, Learner(), {}).save(9)
    (tmp_path / "mine/rollouts").mkdir()
    (tmp_path / "mine/rollouts/3.jsonl").touch()
    path = str(tmp_path / "other/checkpoints/global_step_5")
    named = replace(mine, resume_mode="resume_path", resume_from_path=path)
    assert Checkpoints(named, Learner(), {}).resume() == 5
    assert (tmp_path / "mine/checkpoints/superseded_1/rollouts/3.jsonl").exists()
    assert not (tmp_path / "mine/rollouts/3.jsonl").exists()


def test_automatic_checkpoints_wait_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Checkpoints(Trainer(default_local_dir=str(tmp_path)), Learner(), {})
    run.save(1)
    monkeypatch.setattr("agentrl.training.checkpoint.save_schedule.INTERVAL", -1.0)
    monkeypatch.setattr("agentrl.training.checkpoint.save_schedule.SHARE", 1e9)
    assert run.due(2)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    assert not run.due(3)
    assert not run.due(4)
    assert caplog.text.count("no checkpoint is saved until there is") == 1


def test_a_kill_before_the_folder_is_the_runs_own_changes_nothing(tmp_path: Path) -> None:
    """What is set aside is set aside after the checkpoint is loaded: one that cannot be loaded costs nothing."""
    trainer = Trainer(default_local_dir=str(tmp_path))
    run = Checkpoints(trainer, Learner(), {})
    for step in (1, 2):
        run.save(step)
    path = tmp_path / "checkpoints" / "global_step_1"
    (path / "state.pt").write_bytes(b"half")
    named = replace(trainer, resume_mode="resume_path", resume_from_path=str(path))
    with pytest.raises(UserError, match=r"state\.pt is damaged; resume from an older checkpoint"):
        Checkpoints(named, Learner(), {}).resume()
    assert run.resume() == 2
