"""docs/evaluation.md, docs/doctor.md and what docs/config.md shows of `config check`: run as they stand there."""

import json
import re
from pathlib import Path

import pytest

from agentrl.cli.main import main
from tests.docs.test_guides import DOCS, commands

SCRIPT = """python3 -m verl.trainer.main_ppo \\
    actor_rollout_ref.rollout.n=8 \\
    actor_rollout_ref.rollout.multi_turn.tool_response_truncate_side=left \\
    data.return_raw_chat=True \\
    actor_rollout_ref.rollout.name=trtllm \\
    actor_rollout_ref.rollout.temprature=0.9
"""


def test_answers_and_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    steps = commands("evaluation.md")
    assert [step[0] for step in steps] == ["data", "model", "generate", "generate", "eval", "eval"]
    for step in steps:
        assert main([*step, "trainer.device=cpu"] if step[0] in ("generate", "eval") else step) == 0, step
    assert "pass@4" in capsys.readouterr().out
    assert json.loads((tmp_path / "figures.json").read_text())[0]["answers"] == 32
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 3


def test_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for step in commands("doctor.md"):
        assert main([*step, "trainer.device=cpu"] if step[0] == "doctor" else step) == 0, capsys.readouterr().out
    assert " 0 problems" in capsys.readouterr().out


def test_config_check_reads_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    assert main(["config", "check", str(tmp_path / "run.sh")]) == 1
    shown = re.search(r"\$ agentrl config check run.sh\n(.*?)```", (DOCS / "config.md").read_text(), re.DOTALL)
    assert shown is not None
    assert capsys.readouterr().out.strip() == shown[1].strip()
