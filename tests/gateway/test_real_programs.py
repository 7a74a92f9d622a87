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

ADD, ANSWER = calls("add", '{"a": 12, "b": 5}'), "17"
WRITE = "I write the file.\n" + calls("bash", '{"command": "echo 5 > answer.txt"}')
SUBMIT = "Done.\n" + calls("bash", '{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}')
FINAL = calls("final_answer", '{"answer": "17"}')


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


@pytest.mark.parametrize(
    ("page", "name", "script", "ledgers"),
    [
        ("agent-frameworks.md", "openai-agents", (ADD, ANSWER), 1),
        ("agent-frameworks.md", "langgraph", (ADD, ANSWER), 1),
        ("agent-frameworks.md", "smolagents", (ADD, FINAL), 2),
        ("agent-coding.md", "mini", (WRITE, SUBMIT), 1),
    ],
)
async def test_a_conversation_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, name: str, script: tuple[str, ...], ledgers: int
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    trajectory = await play(entries(page, tmp_path), says(*script), name=name, model_length=32768)
    about = trajectory.extra["program"]
    assert (trajectory.outcome, about["exit_code"]) == (Outcome.OK, 0), about["output"]
    assert (trajectory.turns, len(trajectory.ledgers)) == (2, ledgers)
    for ledger in trajectory.ledgers:
        ledger.check()
    left = "\n".join(file.read_text() for file in Path(about["folder"]).glob("answer.txt"))  # noqa: ASYNC240
    assert (left or about["output"]).split()[-1] == ("5" if name == "mini" else "17")
