"""A folder of checkpoints shows one lineage: checkpoints that a run does not resume from are set aside."""

import os
import pickle
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config.schema import Trainer
from agentrl.core.errors import UserError
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.checkpoint import lineage
from agentrl.training.checkpoint.lineage import latest, set_aside, visible
from agentrl.training.checkpoint.resuming import Resuming, newest
from agentrl.training.checkpoint.run_state import Checkpoints
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


RECORDS = ("metrics.jsonl", "config.yaml", ".wandb.json", "tensorboard/events")


def old_run(run: Path) -> None:
    """A run's folder with records of five steps and checkpoints of four."""
    for name in (*RECORDS, *(f"rollouts/{step}.jsonl" for step in range(1, 6))):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(name)
    write(run / lineage.FOLDER, 1, 2, 3, 4)


def contents(run: Path) -> Counter[bytes]:
    return Counter(file.read_bytes() for file in run.rglob("*") if file.is_file())


class Loader:
    """Loads without a model."""

    def save(self, folder: Path, step: int, state: dict[str, Any], last: bool, model_only: bool) -> None:
        """Not called."""

    def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        return checkpoints.load(path)


def start(run: Path, mode: str) -> int:
    """The start of a run: the step that it resumes from."""
    path = str(run / lineage.FOLDER / "global_step_1") if mode == "resume_path" else None
    dumps = str(run / "rollouts")
    trainer = Trainer(default_local_dir=str(run), rollout_data_dir=dumps, resume_mode=mode, resume_from_path=path)
    return Checkpoints(trainer, Loader(), {}).resume()


def killed_after(changes: int, run: Path, mode: str) -> bool:
    """Whether a start of a run was killed after it made so many changes to its folder."""
    left = iter(range(changes))

    def limited(change: Callable[..., object]) -> Callable[..., object]:
        def limited_change(*args: object, **kwargs: object) -> object:
            if next(left, None) is None:
                raise Killed
            return change(*args, **kwargs)

        return limited_change

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((lineage.shutil, "move"), (lineage.shutil, "copy2"), (Path, "mkdir")):
            patch.setattr(owner, name, limited(getattr(owner, name)))
        try:
            start(run, mode)
        except Killed:
            return True
    return False


@pytest.mark.prevents("a kill at the start of a branch leaves records of the old run beside the new checkpoints")
@pytest.mark.parametrize("again", ["the same", "auto"])
@pytest.mark.parametrize(("mode", "branch"), [("resume_path", 1), ("disable", 0)])
def test_a_kill_at_any_move_is_repaired_by_the_next_start(tmp_path, mode, branch, again):
    """No record is beside checkpoints of another branch, and nothing is lost."""
    for changes in count():
        run = tmp_path / str(changes)
        old_run(run)
        before = contents(run)
        killed = killed_after(changes, run, mode)
        step = start(run, mode if again == "the same" else again)
        assert whole(run / lineage.FOLDER) == dict.fromkeys(range(1, step + 1), "old")  # the begin of the old lineage
        assert step == branch or (again == "auto" and killed)
        if step == branch:
            assert {int(file.stem) for file in (run / "rollouts").glob("*.jsonl")} == set(range(1, step + 1))
            assert sum((run / name).exists() for name in RECORDS) == (3 if step else 0)
        assert not before - contents(run)
        if not killed:
            break
    assert changes > 10


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
