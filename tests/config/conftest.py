"""The least that a training run needs, as overrides."""

from pathlib import Path

import pytest


@pytest.fixture
def ready(tmp_path: Path) -> list[str]:
    rows, reward, model = tmp_path / "rows.jsonl", tmp_path / "reward.py", tmp_path / "model"
    rows.write_text("{}\n")
    reward.write_text("def compute_score(**kwargs):\n    return 0.0\n")
    model.mkdir()
    return [f"model.path={model}", f"data.train_files={rows}", f"reward.custom_reward_function.path={reward}"]
