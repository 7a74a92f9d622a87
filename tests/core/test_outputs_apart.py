"""An output is no input, lies in none and has none in it."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.config.checks.files import answers_output, run_outputs
from agentrl.config.schema import Config
from agentrl.config.schema.evaluation import EvalConfig
from agentrl.config.schema.sft import SftConfig
from agentrl.config.validate import ANSWERING, SUPERVISED, TRAINING
from agentrl.core.errors import UserError
from agentrl.core.outputs import check_apart


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/tasks/one").mkdir(parents=True)
    (tmp_path / "data/rows.jsonl").touch()
    (tmp_path / "model").mkdir()
    (tmp_path / "linked").symlink_to("model")


@pytest.mark.parametrize(
    ("output", "given", "place"),
    [
        ("model", "model", "is"),
        ("linked", "model", "is"),
        ("model", "./data/../linked/", "is"),
        ("model/new/er", "linked", "is inside of"),
        ("data", ["data/rows.jsonl"], "has in it"),
        (".", "data/rows.jsonl", "has in it"),
        ("data/tasks/one", "tasks:data/tasks", "is inside of"),
        ("data/rows.jsonl", ["other", "data/rows.jsonl"], "is"),
    ],
)
def test_refused(output: str, given: Any, place: str) -> None:
    with pytest.raises(UserError, match=rf"^trainer\.x={output} {place} the input model\.path="):
        check_apart(output, "trainer.x", {"model.path": given})


@pytest.mark.parametrize(
    ("output", "given"),
    [("model2", "model"), ("data/answers.jsonl", "data/rows.jsonl"), ("gone", "gone"), ("model", None), ("a", "env:b")],
)
def test_allowed(output: str, given: Any) -> None:
    check_apart(output, "trainer.x", {"model.path": given})


def test_every_command_asks() -> None:
    config = Config()
    config.model.path, config.trainer.rollout_data_dir = "model", "linked/rollouts"
    with pytest.raises(UserError, match="trainer.rollout_data_dir=linked/rollouts is inside of"):
        run_outputs(config.trainer, config.model, config.data)
    supervised, answering = SftConfig(), EvalConfig()
    supervised.model.path = supervised.trainer.output_dir = "model"
    with pytest.raises(UserError, match="trainer.output_dir=model is"):
        run_outputs(supervised.trainer, supervised.model, supervised.data)  # type: ignore[arg-type]
    answering.data.path = answering.data.output_path = "data/rows.jsonl"
    with pytest.raises(UserError, match="data.output_path=data/rows.jsonl is"):
        answers_output(answering.model, answering.data)
    assert run_outputs in TRAINING
    assert run_outputs in SUPERVISED
    assert answers_output in ANSWERING
