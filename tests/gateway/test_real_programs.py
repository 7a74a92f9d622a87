"""Agent programs of the registries, unmodified, with an engine that answers as a model would.

The scripts are those of the docs; `make test-agents` makes the environment that the programs are in.
"""

import os
from pathlib import Path

import pytest
import yaml

from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.docs.pages import section
from tests.gateway.test_programs import play
from tests.rollout.scripted import Script, calls, says

pytestmark = [pytest.mark.agents, pytest.mark.timeout(120)]

ADD = calls("add", '{"a": 12, "b": 5}')
WRITE = calls("bash", '{"command": "echo 17 > answer.txt"}')
SUBMIT = calls("bash", '{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer.txt"}')
FINAL = calls("final_answer", '{"answer": "17"}')
BEGUN = '<tool_call>{"name": "'
"""smolagents requires a call in each turn, so the gateway begins it."""


def entries(part: str, name: str, folder: Path) -> str:
    """The files of a part of docs/agents.md, with a program of the environment; the path of its agents.yaml."""
    programs = os.environ.get("AGENTRL_AGENTS", "")
    if not Path(programs, "python").exists():
        pytest.skip("AGENTRL_AGENTS is no folder of programs: run `make test-agents`")
    for block in section(f"agents.md#{part}"):
        if block.file == "agents.yaml" or (block.kind == "yaml" and not block.file):
            found = [entry for entry in yaml.safe_load(block.text) if entry["name"] == name]
            for entry in found:
                if not Path(programs, entry["command"].split()[0]).exists():
                    pytest.skip(f"{entry['command'].split()[0]} is not installed")
                entry["command"] = f"{programs}/{entry['command']}"
            (folder / "agents.yaml").write_text(yaml.safe_dump(found)) if found else None
        elif block.file:
            (folder / block.file).write_text(block.text)
    return str(folder / "agents.yaml")


async def ended(part: str, name: str, script: Script, folder: Path) -> Trajectory:
    """The trajectory of an agent that answers 17."""
    trajectory = await play(entries(part, name, folder), script, name=name, turn=256, model_length=32768)
    about = trajectory.extra["program"]
    assert (trajectory.outcome, about["exit_code"]) == (Outcome.OK, 0), about["output"]
    assert "17" in about["output"].split()
    for ledger in trajectory.ledgers:
        ledger.check()
    return trajectory


@pytest.mark.parametrize(
    ("name", "turns"),
    [("openai-agents", [ADD, "17"]), ("langgraph", [ADD, "17"]), ("pydantic-ai", [ADD, "17", '{"total": 17}'])],
)
async def test_a_conversation_is_one_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, turns: list[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    trajectory = await ended("an-agent-of-a-framework", name, says(*turns), tmp_path)
    assert (len(trajectory.ledgers), trajectory.turns) == (1, len(turns))


async def test_smolagents_retells_its_calls_in_a_new_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    script = says(*(call.removeprefix(BEGUN) for call in (ADD, FINAL)))
    trajectory = await ended("an-agent-of-a-framework", "smolagents", script, tmp_path)
    assert [sum(ledger.mask) > 0 for ledger in trajectory.ledgers] == [True, True]


async def test_gemini_cli_runs_commands_in_one_ledger(tmp_path: Path) -> None:
    write = calls("run_shell_command", '{"command": "echo 17 > answer.txt"}')
    trajectory = await ended("a-coding-agent", "gemini", says(write, "It is 17"), tmp_path)
    assert (len(trajectory.ledgers), trajectory.turns) == (1, 2)
    written = Path(trajectory.extra["program"]["folder"], "answer.txt")
    assert written.read_text() == "17\n"  # noqa: ASYNC240


async def test_mini_swe_agent_runs_commands_in_one_ledger(tmp_path: Path) -> None:
    trajectory = await ended("a-coding-agent", "mini", says(WRITE, SUBMIT), tmp_path)
    assert len(trajectory.ledgers) == 1
    written = Path(trajectory.extra["program"]["folder"], "answer.txt")
    assert written.read_text() == "17\n"  # noqa: ASYNC240
