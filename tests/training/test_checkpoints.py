"""Checkpoints: whole or not there, found again, refused when damaged."""

import os
import time
from itertools import cycle

import pytest
import torch

from agentrl.core.errors import InfraError, UserError
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.checkpoint.lineage import latest
from agentrl.training.checkpoint.resuming import Resuming
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.shards import TensorChunk
from tests.training.saved import save_checkpoint
from tests.warm import Process

pytestmark = pytest.mark.integration

STATE = {"parameters": {"w": torch.arange(6.0).reshape(2, 3)}, "step": 3, "rng": {"python": (3, (1, 2), None)}}


def write_model(path):
    path.mkdir()
    (path / "config.json").write_text("{}")


def test_round_trip(tmp_path):
    path = save_checkpoint(tmp_path / "new" / "run", 3, STATE, write_model)
    assert path.name == "global_step_3"
    assert (path / "huggingface" / "config.json").is_file()
    step, state = checkpoints.load(path)
    assert step == 3
    assert torch.equal(state["parameters"]["w"], STATE["parameters"]["w"])
    assert state["rng"] == STATE["rng"]


def test_the_latest_is_the_highest_step_and_pruning_keeps_the_newest(tmp_path):
    assert latest(tmp_path / "nowhere") is None
    assert latest(tmp_path) is None
    for step in (9, 10, 2):
        save_checkpoint(tmp_path, step, STATE)
    (tmp_path / "global_step_99.txt").write_text("no checkpoint")
    assert latest(tmp_path).name == "global_step_10"
    for everything in (None, 0, -1):
        checkpoints.prune(tmp_path, everything)
        assert len(list(tmp_path.glob("global_step_*/"))) >= 3
    checkpoints.prune(tmp_path, 2)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["global_step_10", "global_step_9"]
    checkpoints.prune(tmp_path, 1)
    assert latest(tmp_path).name == "global_step_10"


def test_a_failed_save_keeps_the_old_checkpoint(tmp_path):
    def fail(path):
        raise OSError("disk full")

    save_checkpoint(tmp_path, 1, STATE)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(tmp_path, 2, STATE, fail)
    assert latest(tmp_path).name == "global_step_1"
    save_checkpoint(tmp_path, 2, STATE)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["global_step_1", "global_step_2"]


def test_looking_for_a_checkpoint_disturbs_no_run_that_writes_one(tmp_path):
    save_checkpoint(tmp_path, 1, STATE)
    finish = checkpoints.begin(tmp_path, 2, STATE)
    assert latest(tmp_path).name == "global_step_1"
    assert finish() == latest(tmp_path) == tmp_path / "global_step_2"


def test_saving_a_step_again_replaces_it(tmp_path):
    save_checkpoint(tmp_path, 1, {"value": 1})
    save_checkpoint(tmp_path, 1, {"value": 2})
    assert checkpoints.load(tmp_path / "global_step_1") == (1, {"value": 2})
    # killed between the two renames: the old one comes back when a run begins
    (tmp_path / "global_step_1").rename(tmp_path / ".old-global_step_1")
    assert [checkpoints.load(path) for path in Resuming(tmp_path, "auto", None).candidates()] == [(1, {"value": 2})]


@pytest.mark.parametrize("name", ["state.pt", "manifest.json"])
def test_damage_is_found(tmp_path, name):
    path = save_checkpoint(tmp_path, 1, STATE)
    file = path / name
    content = bytearray(file.read_bytes())
    if name == "state.pt":
        content[len(content) // 2] ^= 1
    else:
        content = content[: len(content) // 2]
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"{name} is damaged; resume from an older checkpoint"):
        checkpoints.load(path)
    file.unlink()
    with pytest.raises(UserError):
        checkpoints.load(path)


def test_the_ranks_share_the_files_to_check(tmp_path):
    state = STATE | {"policy": {"w": TensorChunk((4,), 0, torch.ones(4))}}
    path = save_checkpoint(tmp_path, 1, state, write_model)
    files = [file for file in path.rglob("*") if file.is_file() and file.name != "manifest.json"]
    assert checkpoints._refusal(path, 0, 1) is None
    for file in files:
        kept = file.read_bytes()
        file.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        found = [str(refusal) for share in range(3) if (refusal := checkpoints._refusal(path, share, 3))]
        assert len(found) == 1
        assert file.name in found[0]
        file.write_bytes(kept)


def test_foreign_folders_are_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_text("")
    with pytest.raises(UserError, match="is no checkpoint of agentrl"):
        checkpoints.load(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "agentrl-checkpoint-9", "step": 1, "files": {}}')
    with pytest.raises(UserError, match="another version of agentrl"):
        checkpoints.load(tmp_path)


def test_loading_runs_no_code(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    path = save_checkpoint(tmp_path, 1, {"bomb": Bomb()})
    with pytest.raises(Exception, match="weights_only|Weights only"):
        checkpoints.load(path)
    assert not (tmp_path / "exploded").exists()


def save_forever(folder):
    for step in cycle([1, 2, 3]):
        save_checkpoint(folder, step, {"step": step, "w": torch.full((40000,), float(step))})
        checkpoints.prune(folder, 2)
        print(step, flush=True)


def test_a_killed_process_never_leaves_half_a_checkpoint(tmp_path):
    for attempt in range(2):
        writer = Process(save_forever, tmp_path)
        writer.wait_for(lines=1)
        time.sleep(0.017 * (attempt + 1))
        writer.kill()
        found = latest(tmp_path)
        step, state = checkpoints.load(found)
        assert state["step"] == step == int(found.name.rpartition("_")[2])
        assert (state["w"] == step).all()


def test_a_rank_does_not_wait_for_a_first_one_that_cannot_begin(tmp_path):
    class Second(Ranks):
        def attempt(self, function):
            function()
            raise InfraError("rank 0: no space left on device")

    with pytest.raises(InfraError, match="no space left"):
        checkpoints.begin(tmp_path, 1, STATE, ranks=Second(rank=1, world=2))
