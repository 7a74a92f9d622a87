"""What a run goes on from."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema import Trainer
from agentrl.runtime.checkpoints import Checkpoints
from agentrl.training import checkpoints


class Learner:
    """Saves and loads without a model."""

    def save(self, folder: Path, step: int, state: dict[str, Any], last: bool) -> None:
        checkpoints.save(folder, step, state)

    def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        return checkpoints.load(path)


@pytest.mark.parametrize("deletes", [False, True])
def test_a_checkpoint_may_go_once_it_is_loaded(tmp_path: Path, deletes: bool) -> None:
    trainer = Trainer(default_local_dir=str(tmp_path), del_local_ckpt_after_load=deletes)
    run = Checkpoints(trainer, Learner(), {})
    run.save(3)
    assert run.resume() == 3
    assert run.resume() == (0 if deletes else 3)
