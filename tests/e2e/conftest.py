"""A tiny model with a tokenizer of its own, and rows for it, made once for all tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.tasks.models import tiny
from agentrl.tracking import read_metrics
from agentrl.tracking.metrics import is_wall_clock
from tests.once import made_once
from tests.warm import run_agentrl

# Small beside the 50 MB that each checkpoint of `agentrl model tiny` has.
SHAPE = tiny.TinyShape(hidden_size=64, intermediate_size=128, num_hidden_layers=2)


def agentrl(
    *args: str, cwd: Path | None = None, check: bool = True, timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run the command line as a person does; output is captured."""
    done = run_agentrl(*args, cwd=cwd, env=environment(), timeout=timeout)
    if check and done.returncode:
        raise AssertionError(f"agentrl {' '.join(args)}\n{done.stdout}\n{done.stderr}")
    return done


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "agentrl", *args]


def figures(run_dir: Path) -> list[dict[str, float]]:
    """Each step's metrics, without those that depend on the machine."""
    steps = read_metrics(run_dir / "metrics.jsonl")
    return [{name: value for name, value in step.items() if not is_wall_clock(name)} for step in steps]


def environment() -> dict[str, str]:
    return os.environ | {"HF_HUB_OFFLINE": "1", "COLUMNS": "160"}


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with data/ (12 training rows, 8 for validation, demonstrations) and model/."""
    return made_once(tmp_path_factory, "task", make_task)


def make_task(folder: Path) -> None:
    data = ["data", "arithmetic", "--difficulty", "tiny", "--train", "12", "--val", "8", "--demos", "200"]
    agentrl(*data, "--out", str(folder / "data"))
    tiny.prepare(folder / "model", [folder / "data/sft.jsonl"], shape=SHAPE)


@pytest.fixture(scope="session")
def overrides(task: Path) -> list[str]:
    """A run of six steps over two epochs that takes seconds a step."""
    return [
        "--config-name=tiny",
        f"model.path={task / 'model'}",
        f"data.train_files={task / 'data/train.parquet'}",
        f"data.val_files={task / 'data/val.parquet'}",
        "data.train_batch_size=4",
        "data.max_response_length=24",
        "actor.ppo_mini_batch_size=4",
        "rollout.n=4",
        "trainer.total_training_steps=6",
        "trainer.test_freq=3",
        "trainer.save_freq=1",
        "trainer.max_actor_ckpt_to_keep=2",
    ]
