"""Which differences of settings stop a run that would go on, and which are only listed."""

from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest
import yaml

from agentrl.config import to_yaml
from agentrl.config.keys import schema_keys
from agentrl.config.schema import Config, Model, Trainer
from agentrl.config.schema.sft import SftConfig
from agentrl.core.errors import UserError
from agentrl.training.checkpoint.changes import EXPERIMENT, LOCATION, check_changes
from tests.training.saved import save_checkpoint


def run(folder: Path, *overrides: str) -> Config:
    """Settings, without the files that a command line starts from, which take their time."""
    config = Config(trainer=Trainer(default_local_dir=str(folder)), model=Model(path="models/a"))
    for key, _, value in (override.partition("=") for override in overrides):
        *sections, name = key.split(".")
        setattr(reduce(getattr, sections, config), name, yaml.safe_load(value))
    return config


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The folder of a run with a checkpoint."""
    save_checkpoint(tmp_path / "checkpoints", 3, {})
    (tmp_path / "config.yaml").write_text(to_yaml(run(tmp_path)))
    return tmp_path


def check(folder: Path, *overrides: str) -> str | None:
    return check_changes(run(folder, *overrides), folder / "checkpoints").changes or None


def test_the_same_settings_say_nothing(saved: Path) -> None:
    assert check(saved) is None


def test_harmless_ones_are_listed(saved: Path) -> None:
    listed = check(saved, "actor.optim.lr=0.0001", "rollout.temperature=0.9", "trainer.save_freq=9")
    assert listed is not None
    assert listed.startswith(f"settings changed since {saved}/checkpoints/global_step_3: ")
    for change in (
        "actor.optim.lr: 1e-06 -> 0.0001",
        "rollout.temperature: 1.0 -> 0.9",
        "trainer.save_freq: null -> 9",
    ):
        assert change in listed


@pytest.mark.parametrize(
    "override",
    [
        "model.path=models/b",
        "model.lora_rank=8",
        "model.override_config={num_hidden_layers: 2}",
        "data.train_files=[a.parquet, b.parquet]",
        "algorithm.adv_estimator=rloo",
        "reward.custom_reward_function.path=other.py",
        "rollout.multi_turn.tool_config_path=tools/other.yaml",
    ],
)
def test_another_experiment_is_refused_unless_the_checkpoint_is_named(saved: Path, override: str) -> None:
    with pytest.raises(UserError, match="has another experiment") as caught:
        check(saved, override, "rollout.temperature=0.9")
    assert f"{override.partition('=')[0]}: " in str(caught.value)
    assert "rollout.temperature: 1.0 -> 0.9" in str(caught.value)
    path = saved / "checkpoints" / "global_step_3"
    assert f"trainer.resume_mode=resume_path trainer.resume_from_path={path}" in str(caught.value)
    named = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={path}"]
    assert override.partition("=")[0] in (check(saved, override, *named) or "")
    assert check(saved, override, "trainer.resume_mode=disable") is None


def test_another_name_of_the_same_file_is_no_change(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (saved / "models/a").mkdir(parents=True)
    monkeypatch.chdir(saved)
    assert check(saved, f"model.path={saved}/models/a") is None


def test_a_run_that_moved_and_settings_of_another_version_are_no_changes(saved: Path) -> None:
    settings = saved / "config.yaml"
    lines = [line for line in settings.read_text().splitlines() if not line.startswith("  lora_alpha")]
    settings.write_text("\n".join([*lines, "gone: 1"]))
    moved = saved / "moved"
    for name in ("config.yaml", "checkpoints"):
        moved.mkdir(exist_ok=True)
        (saved / name).rename(moved / name)
    assert check(moved) is None


def test_settings_that_cannot_be_read_are_named(saved: Path) -> None:
    (saved / "config.yaml").write_text("a: [")
    with pytest.raises(UserError, match=r"config\.yaml cannot be read"):
        check(saved)


def test_without_a_checkpoint_there_is_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(run(tmp_path)))
    assert check(tmp_path, "model.path=models/b") is None


def test_sft_too(tmp_path: Path) -> None:
    config = SftConfig()
    config.trainer.output_dir = str(tmp_path)
    save_checkpoint(tmp_path / "checkpoints", 3, {})
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    other = replace(config, model=replace(config.model, lora_rank=4))
    with pytest.raises(UserError, match=r"model\.lora_rank: 0 -> 4"):
        check_changes(other, tmp_path / "checkpoints")


def test_the_lists_name_real_keys() -> None:
    keys = [*schema_keys(Config), *schema_keys(SftConfig)]
    for name in (*EXPERIMENT, *LOCATION):
        assert any(key.startswith(name) for key in keys), name
