"""Runs that begin a new branch in an old run's folder: what they write is the newest, and what was there is kept."""

import os
from pathlib import Path

import pytest
import torch

from agentrl.cli.main import main
from agentrl.config import compose
from agentrl.tracking import load_trajectories, read_metrics
from agentrl.train import train
from agentrl.training.checkpoint import folders as checkpoints
from agentrl.training.checkpoint.tensor_files import SavedTensor

pytestmark = pytest.mark.integration


def run(overrides: list[str], folder: Path, *more: str) -> None:
    settings = [
        *overrides[1:],
        "rollout.n=2",
        "data.max_response_length=8",
        "data.val_files=null",
        "actor.entropy_coeff=0.1",  # so that weights move, though the tiny model earns nothing
        "trainer.live=false",
        "trainer.val_before_train=false",
        "trainer.validation_data_dir=null",
        "trainer.max_actor_ckpt_to_keep=null",
        f"trainer.default_local_dir={folder}",
    ]
    train(compose([*settings, *more], config_name="tiny"))


def policy(checkpoint: Path) -> dict[str, torch.Tensor]:
    parameters: dict[str, SavedTensor] = checkpoints.load(checkpoint)[1]["policy"]["parameters"]
    return {name: saved.whole().clone() for name, saved in parameters.items()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def steps(run_dir: Path) -> list[float]:
    return [metrics["step"] for metrics in read_metrics(run_dir / "metrics.jsonl")]


@pytest.mark.timeout(600)
def test_branches_of_a_run(
    tmp_path: Path, overrides: list[str], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    saved = folder / "checkpoints"
    run(overrides, folder, "trainer.total_training_steps=3")
    assert names(saved) == [f"global_step_{step}" for step in (1, 2, 3)]
    old = policy(saved / "global_step_3")

    # From step 1 on another way, into the same folder: it keeps one checkpoint, and that is its own.
    path = saved / "global_step_1"
    again = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={path}", "trainer.seed=7"]
    run(overrides, folder, "trainer.total_training_steps=2", "trainer.max_actor_ckpt_to_keep=1", *again)
    aside = saved / "superseded_1"
    assert names(saved) == ["global_step_2", "superseded_1"]
    assert f"the checkpoints of steps 2, 3 are now in {aside}" in caplog.text
    assert names(aside) == ["config.yaml", "global_step_2", "global_step_3", "metrics.jsonl", "record.json", "rollouts"]
    assert (steps(folder), steps(aside)) == ([1, 2], [1, 2, 3])
    assert names(folder / "rollouts") == ["1.jsonl", "2.jsonl"]
    assert names(aside / "rollouts") == ["2.jsonl", "3.jsonl"]
    seen = [load_trajectories(run_dir / "rollouts" / "2.jsonl")[0]["samples"] for run_dir in (folder, aside)]
    assert seen[0] != seen[1]

    # `agentrl merge` takes the new branch by default, and the old one where it is named.
    new = policy(saved / "global_step_2")
    assert not all(torch.equal(new[name], old[name]) for name in new)
    for source, step in ((folder, 2), (aside, 3)):
        assert main(["merge", str(source), str(tmp_path / f"merged_{step}")]) == 0
        assert f"the policy after step {step}" in " ".join(capsys.readouterr().err.split())

    # It goes on from its own newest; when that is damaged, from the one before.
    run(overrides, folder, "trainer.total_training_steps=4", "trainer.seed=7")
    assert names(saved) == ["global_step_2", "global_step_3", "global_step_4", "superseded_1"]
    whole = policy(saved / "global_step_4")
    os.truncate(saved / "global_step_4" / "policy-00000.safetensors", 1000)
    caplog.clear()
    run(overrides, folder, "trainer.total_training_steps=4", "trainer.seed=7")
    assert "policy-00000.safetensors is damaged; resuming from global_step_3" in caplog.text
    assert all(torch.equal(tensor, whole[name]) for name, tensor in policy(saved / "global_step_4").items())
    assert steps(folder) == [1, 2, 3, 4]

    # From the start, in the same folder.
    run(overrides, folder, "trainer.total_training_steps=1", "trainer.resume_mode=disable")
    assert names(saved) == ["damaged_1", "global_step_1", "superseded_1", "superseded_2"]
    assert main(["merge", str(folder), str(tmp_path / "merged_1")]) == 0
    assert "the policy after step 1" in " ".join(capsys.readouterr().err.split())
