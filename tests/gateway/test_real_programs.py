"""Agent programs of the registries, unmodified, with an engine that answers as a model would.

The scripts are those of the docs; `make test-agents` makes the environment that the programs are in.
"""

import os
from pathlib import Path

import pytest

from agentrl.trajectory.trajectory import Outcome
from tests.docs.pages import PAGES, blocks
from tests.gateway.test_programs import play
from tests.rollout.scripted import calls, says

pytestmark = [pytest.mark.agents, pytest.mark.timeout(120)]

ADD = calls("add", '{"a": 12, "b": 5}')


def entries(page: str, folder: Path) -> str:
    """The files of a page, with the programs of the environment; the path of its agents.yaml."""
    programs = os.environ.get("AGENTRL_AGENTS", "")
    if not Path(programs, "python").exists():
        pytest.skip("AGENTRL_AGENTS is no folder of programs: run `make test-agents`")
    for block in blocks(PAGES[page]):
        if block.file:
            text = block.text.replace("command: ", f"command: {programs}/")
            (folder / block.file).write_text(text if block.file.endswith(".yaml") else block.text)
    return str(folder / "agents.yaml")


@pytest.mark.parametrize("name", ["openai-agents", "langgraph"])
async def test_a_conversation_is_one_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    trajectory = await play(entries("agent-frameworks.md", tmp_path), says(ADD, "17"), name=name, model_length=32768)
    about = trajectory.extra["program"]
    assert (trajectory.outcome, about["exit_code"]) == (Outcome.OK, 0), about["output"]
    assert trajectory.turns == 2
    (ledger,) = trajectory.ledgers
    ledger.check()
    assert about["output"].split()[-1] == "17"
