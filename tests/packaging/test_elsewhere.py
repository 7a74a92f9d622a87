"""What docs/systems.md says of macOS, in a Python from which all that only Linux has was taken away."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ELSEWHERE = Path(__file__).with_name("elsewhere")


def agentrl(folder: Path, *args: str, packages: str = "pyarrow.parquet") -> subprocess.CompletedProcess[str]:
    """`packages`: what the command imports that was built for Linux."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (ELSEWHERE, root, root / "from_verl", root / "sandbox")))
    environment = os.environ | {"PYTHONPATH": path, "BUILT_FOR_LINUX": packages, "COLUMNS": "160"}
    return subprocess.run(
        [sys.executable, "-m", "agentrl", *args],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_the_sandbox_says_what_it_cannot_do(tmp_path: Path) -> None:
    done = agentrl(tmp_path, "sandbox", "check")
    assert done.returncode == 2
    assert done.stderr.startswith("error: the code sandbox needs Linux, and this is darwin")
    assert "reward.sandbox_fusion.url" in done.stderr


def test_tools_and_rows_work(tmp_path: Path) -> None:
    tried = agentrl(tmp_path, "tools", "test", "tools/calculator.yaml")
    assert (tried.returncode, "391" in tried.stdout) == (0, True), tried.stderr
    rows = ("data", "arithmetic", "--out", "data", "--difficulty", "tiny", "--train", "8", "--val", "4")
    assert agentrl(tmp_path, *rows).returncode == 0


@pytest.mark.slow
def test_training_works(tmp_path: Path) -> None:
    rows = ("data", "arithmetic", "--out", "data", "--difficulty", "tiny", "--train", "8", "--val", "4")
    assert agentrl(tmp_path, *rows, "--demos", "100").returncode == 0
    packages = "pyarrow.parquet safetensors.torch transformers peft"
    model = ("model", "tiny", "model", "--tokenizer-data", "data/sft.jsonl")
    assert agentrl(tmp_path, *model, packages=packages).returncode == 0
    sizes = ("data.train_batch_size=2", "actor.ppo_mini_batch_size=2", "rollout.n=2", "data.max_response_length=16")
    files = ("data.train_files=data/train.parquet", "data.val_files=data/val.parquet", "model.path=model")
    train = ("train", "--config-name=tiny", *files, *sizes, "trainer.total_training_steps=1")
    done = agentrl(tmp_path, *train, packages=packages)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/tiny/checkpoints/global_step_1").is_dir()
