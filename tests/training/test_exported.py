"""A checkpoint of a run stands for its model."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from agentrl.training.checkpoint import exported as module
from agentrl.training.checkpoint.exported import exported, is_run, use_checkpoints


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with two checkpoints, whose export is a file with the step's name."""
    for step in (1, 2):
        checkpoint = tmp_path / f"run/checkpoints/global_step_{step}"
        (checkpoint / "huggingface").mkdir(parents=True)
        (checkpoint / "manifest.json").write_text(f"{step}")

    def merge(checkpoint: Path, out: Path, *, adapter: bool) -> None:
        assert adapter
        out.mkdir()
        (out / "model.safetensors").write_text(checkpoint.name)

    monkeypatch.setattr("agentrl.training.checkpoint.merge.merge", merge)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("place", "step"),
    [
        ("", 2),
        ("checkpoints", 2),
        ("checkpoints/global_step_1", 1),
        ("checkpoints/global_step_1/actor", 1),
        ("checkpoints/global_step_1/huggingface", 1),
    ],
)
def test_a_run_is_its_newest_model(run: Path, place: str, step: int) -> None:
    model = exported(run / place)
    assert model is not None
    assert (model / "model.safetensors").read_text() == f"global_step_{step}"
    assert model.parent == run / "checkpoints" / module.EXPORTED
    assert exported(run / place) == model


def test_a_checkpoint_written_again_is_exported_again(run: Path) -> None:
    first = exported(run)
    (run / "checkpoints/global_step_2/manifest.json").write_text("other")
    assert exported(run) != first


def test_a_model_is_itself(run: Path) -> None:
    config = SimpleNamespace(model=SimpleNamespace(path="org/model"))
    assert use_checkpoints(config).model.path == "org/model"
    for name in ("config.json", "model.safetensors"):  # of supervised training, which keeps checkpoints there
        (run / name).touch()
    assert not is_run(run)
    whole = run / "checkpoints/global_step_2/huggingface"
    (whole / "model.safetensors").touch()
    assert exported(run / "checkpoints") == whole
