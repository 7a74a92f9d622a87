"""`agentrl train`: its help, what it prints, how it refuses, and that it trains what it was told to."""

import re
from pathlib import Path

import pytest
import yaml

import agentrl.train
from agentrl.cli.main import main
from agentrl.config import compose
from agentrl.config.keys import schema_keys
from agentrl.config.schema import Config


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    try:
        code = main(["train", *args])
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def ready(tmp_path: Path) -> list[str]:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2 + 3?"}\n' * 64)
    (tmp_path / "reward.py").write_text("def compute_score(**kwargs):\n    return 0.0\n")
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"):
        (tmp_path / "model" / name).write_text("")
    return [
        f"model.path={tmp_path / 'model'}",
        f"data.train_files={tmp_path / 'rows.jsonl'}",
        f"reward.custom_reward_function.path={tmp_path / 'reward.py'}",
    ]


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for part in ("Examples", "Presets", "algorithm=", "dr_grpo", "--config-name", "rollout.multi_turn", "--help-keys"):
        assert part in out


def test_examples_in_the_help_use_real_keys(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--help")
    keys = schema_keys(Config)
    used = re.findall(r"\b([a-z]+(?:\.[a-z_]+)+)=", out)
    assert len(used) > 5
    assert not [key for key in used if key not in keys]


def test_help_keys_lists_every_key_with_type_default_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help-keys")
    assert code == 0
    words = " ".join(out.split())
    for key in schema_keys(Config).values():
        assert f"{key.path} = " in out
        assert key.doc in words
    assert "rollout.n = 1 int" in words


def test_help_keys_takes_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--help-keys", "clip_ratio")
    assert "actor.clip_ratio_high = null" in out
    assert "rollout.n" not in out
    code, _, err = run(capsys, "--help-keys", "temprature")
    assert code == 2
    assert "rollout.temperature" in err


def test_cfg_job_prints_the_resolved_configuration(capsys: pytest.CaptureFixture[str], ready: list[str]) -> None:
    code, out, err = run(capsys, "--cfg", "job", *ready, "rollout.n=3", "trainer.experiment_name=x")
    assert (code, err) == (0, "")
    printed = yaml.safe_load(out)
    assert printed["rollout"]["n"] == 3
    assert printed["trainer"]["default_local_dir"] == str(Path.cwd() / "runs/x")


def test_cfg_job_prints_even_what_is_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--cfg", "job")
    assert code == 0
    assert yaml.safe_load(out)["model"]["path"] is None
    assert "model.path" in err


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["rollout.multi_turn.enable=true"], ["model.path", "agentrl model", "data.train_files", "agentrl data"]),
        (["rollout.temprature=1"], ["rollout.temprature", "rollout.temperature"]),
        (["--config-name", "nope"], ["nope", "train"]),
        (["--config-dir", "nope"], ["nope", "no such folder"]),
        (["rollout.n=x"], ["rollout.n=x", "int"]),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], args: list[str], parts: list[str]) -> None:
    code, out, err = run(capsys, *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    for part in parts:
        assert part in err


def test_it_trains_what_it_was_told(
    capsys: pytest.CaptureFixture[str], ready: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    monkeypatch.setattr(agentrl.train, "train", lambda config, start: given.append(config))
    code, _, err = run(capsys, *ready, "actor_rollout_ref.rollout.n=4", "data.return_raw_chat=true")
    assert code == 0
    assert given == [compose([*ready, "rollout.n=4"])]
    assert "note: actor_rollout_ref.rollout is rollout here" in err
    assert err.count("data.return_raw_chat") == 1
