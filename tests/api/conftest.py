"""A model of a few thousand parameters, and settings for runs of about a second."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.tasks.models import tiny
from tests.once import made_once


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "api", make_model) / "model"


def make_model(folder: Path) -> None:
    (folder / "texts.txt").write_text("What is 2 + 3? The answer is 5.\n" * 50)
    shape = tiny.TinyShape(vocab_size=400, hidden_size=32, intermediate_size=64, num_hidden_layers=1)
    tiny.prepare(folder / "model", [folder / "texts.txt"], shape=shape)


@pytest.fixture
def settings(model: Path, tmp_path: Path) -> dict[str, Any]:
    return {
        "model.path": model,
        "data": {"train_batch_size": 2, "max_prompt_length": 512, "max_response_length": 6},
        "actor.ppo_mini_batch_size": 2,
        "rollout.n": 2,
        "trainer": {"total_training_steps": 2, "device": "cpu", "default_local_dir": tmp_path / "run"},
    }


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    return [{"prompt": f"What is {n} + 1?", "answer": str(n + 1), "level": n} for n in range(4)]
