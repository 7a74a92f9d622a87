"""A folder of checkpoints shows one lineage: checkpoints that a run does not resume from are set aside."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from agentrl.core.errors import UserError
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.checkpoint import lineage
from agentrl.training.checkpoint.lineage import latest, set_aside, visible
from agentrl.training.checkpoint.resuming import Resuming, newest
from agentrl.training.parallel.shards import TensorChunk
from tests.training.saved import save_checkpoint
from tests.warm import Process

pytestmark = pytest.mark.integration


def write(folder: Path, *steps: int, by: str = "old") -> None:
    for step in steps:
        save_checkpoint(folder, step, {"by": by, "w": torch.full((64,), float(step))})


def begin(folder: Path, mode: str = "auto", path: Path | None = None) -> int:
    """The start of a run: the step that it resumes from."""
    resuming = Resuming(folder, mode, None if path is None else str(path))
    found = resuming.first(checkpoints.load, resuming.candidates())
    step = 0 if found is None else found[1][0]
    resuming.claim(step)
    return step


def whole(folder: Path) -> dict[int, str]:
    """Who wrote the checkpoints that a folder shows; each of them loads."""
    return {step: checkpoints.load(path)[1]["by"] for step, path in sorted(visible(folder).items())}


@pytest.mark.prevents("a run in an old run's folder loses its own checkpoints to the old ones, or exports those")
def test_a_run_that_begins_before_the_newest_keeps_its_own_checkpoints(tmp_path, caplog):
    write(tmp_path, 2, 4, 6)
    assert begin(tmp_path, "resume_path", tmp_path / "global_step_2") == 2
    aside = tmp_path / "superseded_1"
    assert [record.message for record in caplog.records] == [
        f"Set aside, not resumed from: the checkpoints of steps 4, 6 are now in {aside}"
    ]
    for step in (3, 4):
        write(tmp_path, step, by="new")
        checkpoints.prune(tmp_path, 2)
    assert whole(tmp_path) == {3: "new", 4: "new"}
    assert whole(aside) == {4: "old", 6: "old"}
    assert newest(str(tmp_path)) == tmp_path / "global_step_4"
    assert newest(str(aside)) == aside / "global_step_6"
    with pytest.raises(UserError, match="global_step_9 is no checkpoint, and has none"):
        newest(str(tmp_path / "global_step_9"))


def test_a_run_that_starts_over_sets_all_aside_as_often_as_it_does(tmp_path):
    for i in range(3):
        write(tmp_path, 1, 2, by=f"run {i}")
        assert begin(tmp_path, "disable") == 0
    assert whole(tmp_path) == {}
    assert latest(tmp_path) is None
    assert [whole(tmp_path / f"superseded_{i + 1}") for i in range(3)] == [
        dict.fromkeys((1, 2), f"run {i}") for i in range(3)
    ]


def test_a_checkpoint_from_elsewhere_has_no_relatives_here(tmp_path):
    write(tmp_path / "one", 5)
    write(tmp_path / "two", 3, 8)
    assert begin(tmp_path / "two", "resume_path", tmp_path / "one" / "global_step_5") == 5
    assert whole(tmp_path / "two") == {}
    # what was set aside is no relative any more, either
    write(tmp_path / "two", 6, by="new")
    assert begin(tmp_path / "two", "resume_path", tmp_path / "two" / "superseded_1" / "global_step_3") == 3
    assert whole(tmp_path / "two") == {}
    assert whole(tmp_path / "two" / "superseded_1") == {3: "old", 8: "old"}
    assert whole(tmp_path / "two" / "superseded_2") == {6: "new"}


def test_going_on_from_the_newest_moves_nothing(tmp_path, caplog):
    write(tmp_path, 2, 4)
    assert begin(tmp_path) == begin(tmp_path, "resume_path", tmp_path / "global_step_4") == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_2", "global_step_4"]
    assert not caplog.records


def test_critics_are_pruned_along_the_lineage(tmp_path):
    state = {"critic": {"w": TensorChunk((4,), 0, torch.ones(4))}}
    for step in (2, 4, 6):
        save_checkpoint(tmp_path, step, state)
    begin(tmp_path, "resume_path", tmp_path / "global_step_2")
    for step in (3, 4):
        save_checkpoint(tmp_path, step, state)
    checkpoints.prune_part(tmp_path, "critic", 1)
    left = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("critic-*"))
    assert left == [
        f"{name}/critic-00000.safetensors"
        for name in ("global_step_4", "superseded_1/global_step_4", "superseded_1/global_step_6")
    ]


def truncate(path: Path) -> None:
    os.truncate(path / "state.pt", 100)


def flip(path: Path) -> None:
    content = bytearray((path / "state.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (path / "state.pt").write_bytes(content)


def forget(path: Path) -> None:
    (path / "manifest.json").unlink()


def tear(path: Path) -> None:
    os.truncate(path / "manifest.json", 20)


def lose(path: Path) -> None:
    (path / "state.pt").unlink()


DAMAGES = [truncate, flip, forget, tear, lose]


@pytest.mark.prevents("a damaged newest checkpoint ends a run that restarts itself")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_falls_back_to_the_one_before(tmp_path, caplog, damage):
    write(tmp_path, 2, 4, 6)
    damage(tmp_path / "global_step_6")
    with pytest.raises(UserError, match="global_step_6.*resume from an older checkpoint"):
        begin(tmp_path, "resume_path", tmp_path / "global_step_6")
    assert begin(tmp_path) == 4
    first, second = (record.message for record in caplog.records)
    assert "global_step_6" in first
    assert first.endswith("; resuming from global_step_4")
    assert second.endswith(f"the checkpoint of step 6 is now in {tmp_path / 'damaged_1'}")
    assert whole(tmp_path) == {2: "old", 4: "old"}


def test_damage_found_by_one_rank_is_raised_on_all(tmp_path):
    found = checkpoints.DamagedCheckpoint(tmp_path / "state.pt")
    copy = pickle.loads(pickle.dumps(found))
    assert (str(copy), copy.trouble) == (str(found), f"{tmp_path / 'state.pt'} is damaged")


def test_where_none_is_whole_nothing_is_begun_in_silence(tmp_path):
    write(tmp_path, 2, 4)
    truncate(tmp_path / "global_step_2")
    forget(tmp_path / "global_step_4")
    with pytest.raises(UserError, match=r"global_step_4.* and no older checkpoint is complete; .*resume_mode=disable"):
        begin(tmp_path)
    assert sorted(visible(tmp_path)) == [2, 4]
    assert begin(tmp_path, "disable") == 0
    assert visible(tmp_path) == {}


def test_another_versions_checkpoint_is_not_skipped(tmp_path):
    write(tmp_path, 2, 4)
    manifest = tmp_path / "global_step_4" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(checkpoints.FORMAT, "agentrl-checkpoint-9"))
    with pytest.raises(UserError, match="another version of agentrl"):
        begin(tmp_path)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moves", range(5))
def test_a_kill_between_the_moves_loses_and_mixes_nothing(tmp_path, monkeypatch, moves):
    """Killed after so many moves, the folder shows the begin of the old lineage, and the next run moves the rest."""
    folder = tmp_path / "checkpoints"
    write(folder, 1, 2, 3, 4)
    dump = tmp_path / "rollouts" / "3.jsonl"
    dump.parent.mkdir()
    dump.write_text("a dump")
    plain, done = lineage.shutil.move, []

    def move(*args: object) -> None:
        if len(done) == moves:
            raise Killed
        done.append(plain(*args))

    monkeypatch.setattr(lineage.shutil, "move", move)
    try:
        set_aside(folder, 1, "superseded", moves={dump: "rollouts/3.jsonl"})
        assert moves == 4
    except Killed:
        assert moves < 4
    monkeypatch.undo()
    assert whole(folder) == dict.fromkeys(range(1, max(5 - moves, 2)), "old")
    set_aside(folder, 1, "superseded", moves={dump: "rollouts/3.jsonl"} if dump.exists() else {})
    assert whole(folder) == {1: "old"}
    asides = sorted(folder.glob("superseded_*"))
    assert {step: text for aside in asides for step, text in whole(aside).items()} == {2: "old", 3: "old", 4: "old"}
    assert dump.exists() == (moves == 3)  # the next run writes over it


def branch_forever(folder):
    number = 0
    while True:
        kept = max(visible(folder), default=0)
        for step in (kept + 1, kept + 2, kept + 3):
            number += 1
            save_checkpoint(folder, step, {"number": number})
            print(number, flush=True)
        set_aside(folder, kept + 1, "superseded")


def test_killed_at_any_moment_every_checkpoint_is_there_once(tmp_path):
    """A real kill: what was reported as saved is either in the lineage or set aside, whole."""
    process = Process(branch_forever, tmp_path)
    process.wait_for(lines=7)
    process.kill()
    checkpoints.tidy(tmp_path)
    found = [checkpoints.load(path)[1]["number"] for path in tmp_path.rglob("global_step_*")]
    assert len(found) == len(set(found))
    assert set(range(1, 1 + len(process.lines()))) <= set(found)
    shown = [checkpoints.load(path)[1]["number"] for _, path in sorted(visible(tmp_path).items())]
    assert shown == sorted(shown)
