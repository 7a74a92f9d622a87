"""The README's example, as it stands there, teaches the model at hand to use the tool."""

from pathlib import Path

import pytest

from agentrl.cli.main import main
from agentrl.tasks.models import smollm2
from agentrl.tracking import read_metrics
from tests.docs.pages import PAGES, blocks

TRAIN = "agentrl train --config-dir . --config-name run"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_model_at_hand_learns_to_ask_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    smollm2.prepare(tmp_path / "models/smollm2")
    for block in blocks(PAGES["README.md"]):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
    exec((tmp_path / "rows.py").read_text(), {})
    assert [line for block in blocks(PAGES["README.md"]) for line in block.commands if line == TRAIN] == [TRAIN]
    assert main(TRAIN.split()[1:]) == 0
    success = [step["rollout/success"] for step in read_metrics(Path("runs/weather/metrics.jsonl"))]
    assert sum(success[:2]) / 2 < 0.3
    assert sum(success[-3:]) / 3 > 0.6
