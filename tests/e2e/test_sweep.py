"""A sweep, each run a process of its own."""

from pathlib import Path

import pytest

from tests.e2e.conftest import agentrl


@pytest.mark.slow
def test_two_runs_for_real(task: Path, tmp_path: Path) -> None:
    done = agentrl(
        *("sft", "-m", "optim.lr=1e-4,1e-3", f"model.path={task / 'model'}"),
        *(f"data.train_files={task / 'data/sft.jsonl'}", "trainer.total_training_steps=2", "trainer.output_dir=out"),
        "trainer.logger=[console,file]",
        cwd=tmp_path,
    )
    assert done.stdout.count("train/loss") == 2
    assert {folder.name for folder in (tmp_path / "out").iterdir()} == {"lr-0.0001", "lr-0.001"}
